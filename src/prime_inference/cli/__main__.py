"""`python -m prime_inference.cli` is the `prime` command."""

from prime_inference.cli.main import main

if __name__ == "__main__":
    main()
