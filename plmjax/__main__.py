"""The program: `plmjax` and `python -m plmjax`.

A signal ends it in one sentence from here on, also while it imports; so the command line comes second.
"""

from plmjax.parallel import stopping


def main() -> None:
    """Entry point of `plmjax`."""
    stopping.watch()
    from plmjax import cli

    cli.main()


if __name__ == "__main__":
    main()
