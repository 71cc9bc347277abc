"""The declarations of all systems, and the classes of their configs by name."""

import importlib
import pkgutil

from plmjax import models

FILES = [importlib.import_module(found.name) for found in pkgutil.walk_packages(models.__path__, "plmjax.models.")]
DECLARED = [(file, system) for file in FILES for system in getattr(file, "SYSTEMS", (getattr(file, "SYSTEM", None),))]
SYSTEMS = {system.config.__name__: system for _, system in DECLARED if system is not None}
CONFIGS = {name.removesuffix("Config"): system.config for name, system in SYSTEMS.items()}
