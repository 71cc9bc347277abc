"""Cleaning of documents by named rules, each with its source; one file per kind of rule.

`rule` is the interface, `catalogue` the names of rules and sets, `cleaner` applies them, `report` counts their effects.
"""

from plmjax.data.cleaning.catalogue import RULES, SETS, names
from plmjax.data.cleaning.cleaner import REPORT, Cleaner, Screened, cleaner
from plmjax.data.cleaning.report import Count, Effect, Report

__all__ = ["REPORT", "RULES", "SETS", "Cleaner", "Count", "Effect", "Report", "Screened", "cleaner", "names"]
