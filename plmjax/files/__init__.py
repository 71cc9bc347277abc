"""Files on disks and in buckets: paths, atomic writes, digests, locks, and JSON."""
