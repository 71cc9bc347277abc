"""DeBERTa, versions 2 and 3."""
