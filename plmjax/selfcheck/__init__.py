"""The check of a machine or slice before a run: functions of the training are compared with plainer ones."""
