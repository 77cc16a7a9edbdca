"""`python -m delta_runner module:app`."""

from .main import main

if __name__ == "__main__":
    main()
