"""Teams, keys and limits as a replica knows them: pure."""
