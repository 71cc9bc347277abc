"""Distillation: a student is trained beside its teacher."""
