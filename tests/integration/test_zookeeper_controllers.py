"""Controllers as processes whose metadata is in ZooKeeper: succession under kills and stops."""

from __future__ import annotations

import dataclasses
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from semel.controller import ControllerConfig, ControllerNode
from semel.controller.epoch import ControllerEpoch
from semel.controller.opening import open_store
from semel.protos.errors import DataDirectoryError, NotMaster
from semel.protos.rpc import error_from_rpc
from semel.protos.v1 import controller_pb2 as pb
from tests.kit.controller_process import Process, one_line, run
from tests.kit.waiting import until
from tests.kit.zookeeper import Server

PATIENCE_S = 60.0


def opens(process: Process, name: str) -> pb.OpenProducerReply | None:
    """The controller's answer, None while it is a standby."""
    try:
        reply: pb.OpenProducerReply = process.stub.OpenProducer(
            pb.OpenProducerRequest(name=name, open_id=secrets.token_bytes(8)), timeout=PATIENCE_S
        )
        return reply
    except grpc.RpcError as error:
        found = error_from_rpc(error)
        assert isinstance(found, NotMaster)
        return None


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


def test_a_standby_takes_over_from_a_killed_and_from_a_stopped_master(
    tmp_path: Path, zookeeper_server: Server, started: list[Process]
) -> None:
    place = f"zookeeper://{zookeeper_server.address}/{secrets.token_hex(8)}"

    def controller(number: int) -> Process:
        process = Process(
            tmp_path / str(number),
            *("--metadata", place, "--controller-id", str(number), "--cluster-id", "one"),
        )
        started.append(process)
        return process

    first = controller(1)
    opened = opens(first, "p")
    assert opened is not None
    second = controller(2)
    assert opens(second, "p") is None

    first.end(signal.SIGKILL)
    epochs = [opened.epoch]

    def taken_over(by: Process) -> Callable[[], bool]:
        def check() -> bool:
            reply = opens(by, "p")
            if reply is not None:
                assert reply.producer_id == opened.producer_id
                epochs.append(reply.epoch)
            return reply is not None

        return check

    until(taken_over(second))
    third = controller(3)
    assert opens(third, "p") is None
    second.process.send_signal(signal.SIGSTOP)
    until(taken_over(third))
    waiting = second.stub.OpenProducer.future(
        pb.OpenProducerRequest(name="p", open_id=b"late"), timeout=PATIENCE_S
    )
    second.process.send_signal(signal.SIGCONT)
    with pytest.raises(grpc.RpcError) as caught:
        waiting.result()
    assert error_from_rpc(caught.value).retriable
    until(lambda: opens(second, "p") is None)
    until(taken_over(third))
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs))), "an epoch given out twice"

    def all_known() -> bool:
        status = third.stub.GetClusterStatus(pb.ClusterStatusRequest(), timeout=PATIENCE_S)
        return [(one.controller_id, one.role, one.alive) for one in status.controllers] == [
            (1, "standby", False),
            (2, "standby", True),
            (3, "master", True),
        ]

    until(all_known)


async def test_a_cluster_is_not_begun_anew_beside_its_own_metadata(
    tmp_path: Path, zookeeper_server: Server
) -> None:
    metadata = f"zookeeper://{zookeeper_server.address}/{secrets.token_hex(8)}"
    own = ControllerConfig(data=tmp_path / "own", listen="127.0.0.1:0")
    async with ControllerNode(own):
        pass
    moving = dataclasses.replace(own, metadata=metadata)
    for _ in range(2):  # the refusal leaves nothing behind
        with pytest.raises(DataDirectoryError, match=r"there is no store.*semel controller export"):
            await open_store(moving)
    new = ControllerConfig(data=tmp_path / "new", metadata=metadata, cluster_id="one")
    store = await open_store(new)
    with pytest.raises(DataDirectoryError, match=r"is empty.*semel controller export"):
        await open_store(moving)
    with pytest.raises(DataDirectoryError, match="belongs to cluster one, not to two"):
        await open_store(dataclasses.replace(new, cluster_id="two"))
    await ControllerEpoch.begin(store, now_us=1, cluster_id="one")
    await (await open_store(moving)).close()
    await store.close()


def test_a_wrong_chroot_is_refused_in_one_line(tmp_path: Path, zookeeper_server: Server) -> None:
    metadata = f"zookeeper://{zookeeper_server.address}/no/such/place"
    refused = run(
        *("--data", str(tmp_path), "--metadata", metadata),
        SEMEL_CONTROLLER_LISTEN="127.0.0.1:0",
    )
    assert "there is no /no/such in ZooKeeper" in one_line(refused)
