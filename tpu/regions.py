"""The region of a bucket compared with that of a slice. Reads from another region are slower, and are billed.

Names: docs.cloud.google.com/storage/docs/locations.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from plmjax.files import buckets, storage

_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
MULTI_REGIONS = {"us": r"us-.*", "eu": r"europe-.*(?<!west2)(?<!west6)", "asia": r"asia-.*"}
"""Multi-region -> pattern of its regions. London and Zurich are not in the multi-region EU."""
DUAL_REGIONS = {
    "asia1": ("asia-northeast1", "asia-northeast2"),
    "eur4": ("europe-north1", "europe-west4"),
    "eur5": ("europe-west1", "europe-west2"),
    "eur7": ("europe-west2", "europe-west3"),
    "eur8": ("europe-west3", "europe-west6"),
    "nam4": ("us-central1", "us-east1"),
}
"""Predefined dual-region -> its regions. A bucket in another dual-region lists the regions in its placement."""


def of_zone(zone: str) -> str:
    """Return the region of a zone: us-west4 for us-west4-a."""
    return zone.rpartition("-")[0]


def contains(bucket: dict[str, Any], region: str) -> bool:
    """Return whether a bucket is in a region; true, too, if the form of its location is unknown.

    bucket: the description of the bucket in the JSON API.
    """
    location = str(bucket.get("location", "")).lower()
    chosen = bucket.get("customPlacementConfig", {}).get("dataLocations", ())
    if chosen:
        return region in [name.lower() for name in chosen]
    if location in DUAL_REGIONS:
        return region in DUAL_REGIONS[location]
    if location in MULTI_REGIONS:
        return re.fullmatch(MULTI_REGIONS[location], region) is not None
    return not _REGION.fullmatch(location) or location == region


def warnings(bucket: str, zones: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each zone whose region is not that of the bucket.

    Raises:
        UserError, Unavailable: the bucket is missing or does not answer.
    """
    if not storage.in_bucket(bucket):
        return
    buckets.check(bucket)
    name = bucket.removeprefix(buckets.SCHEME).partition("/")[0]
    found = buckets.client().call("GET", "b/{}", name, json_out=True)
    for zone in zones:
        if not contains(found, of_zone(zone)):
            yield (
                f"{buckets.SCHEME}{name} is in {found['location']} and the slice in {zone}: every start, batch and "
                f"checkpoint then crosses between regions, which takes longer, and Cloud bills every GiB that is read "
                f"(cloud.google.com/storage/pricing); a bucket in {of_zone(zone)} avoids both."
            )
