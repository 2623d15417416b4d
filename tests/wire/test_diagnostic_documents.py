"""What a tenant is told of nodes: whether they fit and why not, and never which instance is in the way."""

from __future__ import annotations

import pytest

from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import InstanceId, Namespace, NodeId
from skerry.model.ports import Protocol
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.schedule.results import NodeFeasibility, PortConflict
from skerry.wire.diagnostic_documents import node_verdicts

FREE = Resources(Millicores(100), Megabytes(200), Gigabytes(1))
TAKEN = NodeFeasibility(NodeId("n1"), FREE, (PortConflict(80, Protocol.TCP, InstanceId("of-the-lab")),))


@pytest.mark.parametrize("namespaces", [None, (Namespace("shop"),)])
def test_only_unbound_callers_are_told_which_instance_has_a_port(namespaces):
    caller = Caller(AuthMethod.TOKEN, "somebody", Role.VIEWER, namespaces=namespaces)
    (verdict,) = node_verdicts([TAKEN], caller)
    assert not verdict.fits
    assert "port 80/tcp is taken" in verdict.text
    assert ("of-the-lab" in repr(verdict)) is (namespaces is None)
