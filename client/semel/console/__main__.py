"""`python -m semel.console` is `semel`."""

from semel.console.main import main

if __name__ == "__main__":
    main()
