"""Deliberate faults of forwarded ports, networks, and what connects them. Pure."""

from collections.abc import Iterator

from tests.stress.mutations.mutation import Faults, Mutation

_SHIM = "supervisor/shim/"
_PARTS = "tests/component/supervisor/"


def faults() -> Iterator[Mutation]:
    yield from _forwarding()
    yield from _networks()
    yield from _rootless()
    yield from _sockets()


def _forwarding() -> Iterator[Mutation]:
    tests = "tests/integration/commands/test_forward.py::"
    forwarding = Faults("supervisor/sessions/forwarding.py")
    yield forwarding(
        "anybody-may-use-a-forward",
        "if not may_connect(client):",
        "if False:",
        tests + "test_another_user_is_refused",
    )
    yield Faults("supervisor/containers/connections.py")(
        "a-failed-connection-ends-in-peace",
        "client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)",
        "pass",
        tests + "test_a_port_that_nobody_listens_on",
    )
    yield forwarding(
        "a-forward-outlives-its-command",
        "nursery.start_soon(_end_with, connection, nursery.cancel_scope)",
        "pass",
        tests + "test_nothing_is_left",
    )
    yield Faults(_SHIM + "network.py")(
        "a-forward-leads-to-the-node-s-network",
        'if _namespace(pid, "net") != own:',
        "if False:",
        tests + "test_a_page",
    )
    yield Faults("supervisor/nodes/connected.py")(
        "clients-wait-for-a-node-that-is-cut-off",
        "    with trio.move_on_after(_PATIENCE):\n        await reply.wait()",
        "    if True:\n        await reply.wait()",
        tests + "test_a_node_that_is_cut_off",
    )
    connected = Faults(
        "supervisor/nodes/connected.py", _PARTS + "nodes/test_connected.py::test_an_older_shim"
    )
    yield connected("an-older-shim-loses-the-first-bytes", "if is_early:", "if True:")
    yield connected("an-older-shim-keeps-connections", "is_over = is_early", "is_over = True")
    yield Faults(_SHIM + "connections.py")(
        "a-connection-outlives-both-its-ends",
        "if not self._directions:",
        "if False:",
        _PARTS + "shim/test_networks.py::test_bytes_come_before_the_connection",
    )
    yield Faults("supervisor/wire/seals.py")(
        "a-long-frame-leaves-its-memory",
        "if len(self._room) > _MANY:",
        "if False:",
        "tests/unit/supervisor/wire/test_frames.py::test_memory_is_for_what_arrives",
    )
    yield Faults("supervisor/engines/local/job.py")(
        "what-a-slow-client-does-not-take-is-lost",
        "await stream.send_all(rest)",
        'await stream.send_all(b"")',
        "tests/component/supervisor/engines/local/test_reach.py",
    )
    connections = Faults(_SHIM + "connections.py")
    yield connections(
        "a-server-is-not-told-of-a-client-s-end",
        "self._sock.shutdown(socket.SHUT_WR)",
        "pass",
        tests + "test_both_directions_end_by_themselves",
    )
    yield connections(
        "a-client-that-went-leaves-its-connection",
        "found = self._open.pop(number, None)",
        "found = None",
        tests + "test_a_client_that_goes",
    )
    yield connections(
        "a-server-on-the-second-loopback-is-not-found",
        "self._left = list(addresses)",
        "self._left = list(addresses[:1])",
        tests + "test_a_server_on_the_other_loopback",
    )


def _networks() -> Iterator[Mutation]:
    answering = _PARTS + "containers/test_engine_network.py::"
    network = Faults("supervisor/containers/engine_network.py")
    yield network(
        "servers-in-a-network-lose-their-clients",
        "if somebody_listens():",
        "if False:",
        answering + "test_a_network_with_other_servers",
    )
    yield network(
        "datagrams-vanish",
        "await trio.lowlevel.wait_readable(udp)",
        "await trio.sleep_forever()",
        "tests/integration/engines/test_networks.py::test_what_is_not_carried_is_said",
    )
    yield network(
        "a-port-of-this-machine-s-leads-to-itself",
        "if job.is_beside_us:",
        "if False:",
        answering + "test_a_container_in_our_own_network",
    )
    yield network(
        "clients-come-before-the-container-runs",
        "await begun.wait()",
        "pass",
        answering + "test_clients_wait_until_it_runs",
    )
    docker = Faults(
        "supervisor/containers/docker_network.py", _PARTS + "containers/test_docker_network.py"
    )
    yield docker(
        "a-container-without-a-network-gets-one",
        "return any(name != _LOOPBACK for name in names)",
        "return True",
    )
    yield docker("every-hook-is-called", "if hook.args[:1] == [_HOOK]", "if hook.args")
    yield docker("a-hook-may-fail", "if status:", "if False:")
    engines = "tests/integration/engines/test_networks.py::"
    yield Faults("supervisor/engines/slurm/shim_job.py")(
        "members-have-another-network-than-their-pod",
        "self._place.has_network()",
        "pass",
        engines + "test_a_pod_has_one_network",
    )
    yield network(
        "clients-of-a-network-that-nobody-answers-wait",
        "deposit.drop(NETWORK)",
        "pass",
        engines + "test_in_the_network_of_this_very_machine",
    )
    yield Faults(_SHIM + "targets.py")(
        "an-exec-has-the-node-s-network",
        "None if container is None else container.network",
        "None",
        _PARTS + "shim/test_networks.py::test_an_exec_has_its_network",
    )
    yield network(
        "a-network-that-comes-later-is-not-told",
        "nursery.start_soon(self._tell_of_others)",
        "pass",
        answering + "test_a_network_that_comes_later",
    )
    on_nodes = _PARTS + "shim/test_networks.py::"
    arrivals = Faults(_SHIM + "arrivals.py")
    yield arrivals(
        "what-a-dead-supervisor-has-accepted-waits-for-ever",
        "self._arrived = deque(what for _, what in self._clients.values())",
        "pass",
        on_nodes + "test_another_supervisor_gets_connections",
    )
    yield arrivals(
        "a-shim-without-descriptors-turns-round-and-round",
        "if error.errno in _NO_ROOM:",
        "if False:",
        on_nodes + "test_more_connections_than_room",
    )
    yield Faults(_SHIM + "connections.py")(
        "servers-take-everybody-for-their-own-loopback",
        "if outside and network is not None:",
        "if False:",
        on_nodes + "test_clients_from_outside",
    )
    yield Faults(_SHIM + "user_network.py")(
        "a-network-is-dead-without-its-program",
        "if self._is_wanted and self._tell is None:",
        "if False:",
        on_nodes + "test_what_connects_it_is_killed",
    )
    yield Faults("supervisor/containers/connections.py")(
        "each-listener-has-a-place-for-ever",
        "await trio.lowlevel.wait_readable(listener)",
        "pass",
        answering + "test_more_clients_than_room",
    )


def _rootless() -> Iterator[Mutation]:
    """Of an engine in a network of its own."""
    tests = "tests/integration/commands/test_outside.py::"
    docker = "tests/integration/engines/test_docker_networks.py::"
    outside = Faults("scrun/commands/outside.py")
    yield outside(
        "a-stranger-starts-supervisors",
        "wire.check_peer(line)",
        "pass",
        tests + "test_somebody_else",
    )
    yield outside(
        "what-stays-outside-outlives-its-engine",
        "while pidfd not in [fd for fd, _ in poll.poll()]:",
        "while poll.poll():",
        tests + "test_its_supervisor_has_this_machines_network",
    )
    yield outside(
        "a-supervisor-keeps-out-of-its-engines-namespaces",
        "ns.enter(fd, _KINDS[kind])",
        "pass",
        tests + "test_its_supervisor_has_this_machines_network",
    )
    yield outside(
        "a-lack-of-processes-ends-what-stays-outside",
        "except OSError:  # too many processes for now",
        "except ValueError:  # too many processes for now",
        tests + "test_it_outlives_a_lack_of_processes",
    )
    yield outside(
        "others-may-write-beside-the-socket",
        " or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)",
        "",
        tests + "test_others_may_not_write_beside_the_socket",
    )
    yield Faults("supervisor/containers/engine_network.py")(
        "an-engines-own-network-is-a-containers",
        "if str(namespace.st_ino) == os.environ.get(ENGINES_NETWORK):",
        "if False:",
        docker + "test_the_network_of_the_host_is_the_nodes",
    )
    yield Faults("scrun/client/launch.py")(
        "a-successor-forgets-its-engines-network",
        '*("SCRUN_WATCHDOG", ENGINES_NETWORK)',
        '*("SCRUN_WATCHDOG",)',
        docker + "test_the_network_of_the_host_is_the_nodes",
    )


def _sockets() -> Iterator[Mutation]:
    parts = _PARTS + "containers/test_engine_sockets.py::"
    sockets = Faults("supervisor/containers/engine_sockets.py")
    yield sockets(
        "a-node-names-the-socket",
        "if address not in self._sockets:",
        "if False:",
        parts + "test_a_node_asks_for_another_one",
    )
    yield sockets(
        "another-user-s-socket-leads-back",
        "or status.st_uid != user",
        "or False",
        parts + "test_it_is_another_user_s",
    )
    yield sockets(
        "whoever-listens-is-the-engine",
        "if peer_uid(sock) != user:",
        "if False:",
        parts + "test_another_user_listens",
    )
    policy = "tests/unit/supervisor/staging/test_staging_policy.py::"
    yield Faults("supervisor/staging/mounts.py")(
        "every-socket-is-an-engine-s",
        "return os.path.basename(path) in _ENGINE_SOCKETS",
        "return True",
        policy + "test_another_socket_of_the_user_s_is_dropped",
    )
    yield Faults(_SHIM + "containers.py")(
        "sockets-outlive-their-container",
        "if one.sockets is not None:",
        "if False:",
        _PARTS + "shim/test_engine_sockets.py::test_they_go_with_it",
    )
    yield Faults("scrun/install/service.py")(
        "undo-ends-whatever-podman-runs",
        "and tuple(words[1:3]) == _SERVES",
        "",
        "tests/unit/scrun/install/test_service.py::test_which_process_is_ended",
    )
    tree = Faults("supervisor/containers/tree.py")
    yield tree(
        "what-has-no-effect-is-not-said",
        "        await self._tell_missed()\n        assert self._job is not None",
        "        assert self._job is not None",
        "tests/clients/test_engine_socket.py::test_it_is_not_mounted",
    )
    yield tree(
        "a-successor-leaves-the-sockets-alone",
        "            self._carry_sockets(job, staged)\n            if not",
        "            if not",
        "tests/clients/test_engine_socket.py::test_its_supervisor_dies",
    )
