"""The program: `plmjax` and `python -m plmjax`.

It handles signals before it imports the command line, so that a signal ends it with one sentence even during imports.
"""

from plmjax.parallel import stopping


def main() -> None:
    """Entry point of `plmjax`."""
    stopping.watch()
    from plmjax import cli

    cli.main()


if __name__ == "__main__":
    main()
