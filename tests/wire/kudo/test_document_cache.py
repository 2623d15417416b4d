"""Encoded documents of instances are used again for the same state, and only then."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from skerry.kit import json_codec
from skerry.model.resources import NO_RESOURCES
from skerry.model.statuses import InstanceStatus
from skerry.wire.kudo.document_cache import DocumentCache
from skerry.wire.kudo.documents import instance_document
from tests.support.fleets import ROOM, instance_on


def test_a_document_is_that_of_the_instance_and_its_usage() -> None:
    cache, instance = DocumentCache(), instance_on("n1", "i1")
    for usage in (NO_RESOURCES, ROOM, NO_RESOURCES):
        expected = json_codec.encode(instance_document(instance, usage))
        assert bytes(cache.encode(instance, usage)) == expected


def test_a_document_is_made_once_for_one_state() -> None:
    cache, instance = DocumentCache(), instance_on("n1", "i1")
    assert cache.encode(instance, ROOM) is cache.encode(instance, ROOM)


def test_a_record_that_was_written_again_has_another_document() -> None:
    cache, instance = DocumentCache(), instance_on("n1", "i1")
    cache.encode(instance, ROOM)
    observed = replace(instance.observed, status=InstanceStatus.CRASHED, reason="exit 1")
    document = json_codec.decode(bytes(cache.encode(replace(instance, observed=observed), ROOM)), dict)
    assert (document["status"], document["reason"]) == ("CRASHED", "exit 1")


def test_the_number_of_documents_is_bounded_and_the_oldest_goes_first() -> None:
    cache = DocumentCache(most=3)
    instances = [instance_on("n1", f"i{number}") for number in range(4)]
    first = cache.encode(instances[0], ROOM)
    for instance in instances:
        cache.encode(instance, ROOM)
    assert len(cache) == 3
    assert cache.encode(instances[0], ROOM) is not first
    assert isinstance(first, msgspec.Raw)
