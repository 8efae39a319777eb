"""`python -m tritonmm.cli`."""

from tritonmm.cli import main

if __name__ == "__main__":
    main()
