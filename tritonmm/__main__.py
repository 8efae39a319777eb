"""`python -m tritonmm`: the `tritonmm` command."""

from tritonmm.cli import main

if __name__ == "__main__":
    main(prog_name="tritonmm")
