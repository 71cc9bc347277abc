"""Tables of options: every option, and the test that shows what it does."""

from collections.abc import Callable, Iterable

from tests.paths import ROOT


class Effects:
    """The options of one part of the command line, each with the test that shows its effect.

    table: the file that a new option gets a row in, for messages.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self.rows: dict[str, str] = {}

    def of(self, *options: str) -> Callable:
        """Mark a test as the row of these options."""

        def mark(test: Callable) -> Callable:
            return self._add(options, test.__name__) or test

        return mark

    def shown_by(self, test: str, *options: str) -> None:
        """Name a test of another file, FILE::NAME from the root, as the row of these options."""
        self._add(options, test)

    def _add(self, options: Iterable[str], test: str) -> None:
        for option in options:
            assert option not in self.rows, f"{option} has a row already: {self.rows[option]}"
            self.rows[option] = test

    def check(self, known: Iterable[str]) -> None:
        """Fail unless every known option has a row, every row is a known option, and every test is there."""
        known = {*known}
        new, old = sorted(known - self.rows.keys()), sorted(self.rows.keys() - known)
        assert not new, f"no test shows what {', '.join(new)} does; add a row to {self.table} with an effect to observe"
        assert not old, f"no such option: {', '.join(old)}; remove the row from {self.table}"
        for test in {test for test in self.rows.values() if "::" in test}:
            file, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{test} is not there"
