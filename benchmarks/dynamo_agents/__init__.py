"""Sessions of agents on real Dynamo processes with the mocker behind them."""
