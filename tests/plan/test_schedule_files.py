"""The files of schedules that a compiler writes: those of instructions and of the program are read, all are removed."""

from plmjax.plan import schedule_files, schedules
from plmjax.plan.schedules import Schedule
from tests.plan.programs import SCHEDULE, TOP_LEVEL


def test_a_folder_has_the_schedules_of_instructions_and_of_the_program(tmp_path):
    for name, text in (("17-fusion.3", SCHEDULE), ("17-TLP", TOP_LEVEL)):
        (tmp_path / f"{name}-01-final_bundles.txt").write_text(text)
    found = schedule_files.read(tmp_path)
    assert found.keys() == {"fusion.1", "copy.2", "fusion.3", "fusion.4"}
    assert found["fusion.3"] == Schedule(schedules.parse(SCHEDULE).cycles, before=15)
    assert found["copy.2"] == Schedule(None, before=2)


def test_a_folder_of_schedules_is_read_and_emptied(tmp_path):
    for name in (
        "17-fusion.2-01-final_bundles.txt",
        "17-fusion.2-00-schedule-analysis_final_bundles.txt",
        "17-TLP.html",
    ):
        (tmp_path / name).write_text(SCHEDULE)
    assert schedule_files.read(tmp_path) == {"fusion.2": schedules.parse(SCHEDULE)}
    assert list(tmp_path.iterdir()) == []
