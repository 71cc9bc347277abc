"""The program: `plmjax` and `python -m plmjax`.

The signal handlers are installed before the command line is imported. So a signal during the imports also ends the
program with one sentence.
"""

from plmjax.parallel import stopping


def main() -> None:
    """Run `plmjax`."""
    stopping.watch()
    from plmjax.commands import cli

    cli.main()


if __name__ == "__main__":
    main()
