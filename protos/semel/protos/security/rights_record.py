"""Rules and groups as they are stored and told, and what a change makes of them.

Not here: the decision (`rules.py`), the store (the controllers').
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from semel.protos.errors import InvalidRequest
from semel.protos.security.rules import Resource, Rule, RuleBook, Scope, check_principal
from semel.protos.v1.controller_pb2 import (
    ChangeRightsRequest,
    CheckRightReply,
    CheckRightRequest,
)
from semel.protos.v1.metadata_pb2 import PrincipalGroup, RightsRecord

RECORD_BYTES_MAX: Final = 512 << 10
"""One record has all rules, and ZooKeeper takes values up to 1 MiB."""


def book_of(record: RightsRecord) -> RuleBook:
    """The rules and groups of a record. Raises InvalidRequest for one that this program does not
    understand."""
    return RuleBook(
        map(Rule.parse, record.rules), {group.name: group.members for group in record.groups}
    )


def changed(record: RightsRecord, request: ChangeRightsRequest) -> RightsRecord:
    """The record after a change; the same object if it is so already. Raises InvalidRequest."""
    add, remove = _rules(request.add_rules), _rules(request.remove_rules)
    if both := add & remove:
        raise InvalidRequest(f"`{min(both)}` is to be added and removed")
    groups = {group.name: set(group.members) for group in record.groups}
    for group in request.add_members:
        groups.setdefault(_group(group), set()).update(_members(group.members))
    for group in request.remove_members:
        groups.setdefault(_group(group), set()).difference_update(_members(group.members))
    after = RightsRecord(
        version=record.version,
        rules=sorted((set(record.rules) | add) - remove),
        groups=[
            PrincipalGroup(name=name, members=sorted(members))
            for name, members in sorted(groups.items())
            if members
        ],
        quotas=record.quotas,
    )
    if after == record:
        return record
    after.version += 1
    if after.ByteSize() > RECORD_BYTES_MAX:
        raise InvalidRequest(
            f"all rules together would take {after.ByteSize()} bytes, and may take"
            f" {RECORD_BYTES_MAX}: give rights to groups, and use prefixes"
        )
    return after


def changes_of(request: ChangeRightsRequest) -> list[str]:
    """Lines that say, for people, what a change asks for."""
    return [
        *(f"add {rule}" for rule in request.add_rules),
        *(f"remove {rule}" for rule in request.remove_rules),
        *(f"add {' '.join(group.members)} to group:{group.name}" for group in request.add_members),
        *(
            f"remove {' '.join(group.members)} from group:{group.name}"
            for group in request.remove_members
        ),
    ]


def check_right(book: RuleBook, request: CheckRightRequest) -> CheckRightReply:
    """The decision that is asked for. Raises InvalidRequest."""
    action = Scope.parse(f"{request.action} {request.resource}").action
    if action is None:
        raise InvalidRequest("ask about one action, not about *")
    rights = book.rights_of(check_principal(request.principal))
    decision = rights.decide(action, one_resource(request.resource))
    return CheckRightReply(
        allowed=decision.allowed,
        rule="" if decision.rule is None else str(decision.rule),
        reason=decision.reason,
    )


def one_resource(text: str) -> Resource:
    """The resource that `text` names. Raises InvalidRequest, also for a pattern."""
    scope = Scope.parse(f"* {text}")
    if scope.pattern.endswith("*"):
        raise InvalidRequest(f"{text} stands for many resources: name one")
    return Resource(scope.kind, scope.pattern)


def _rules(texts: Iterable[str]) -> set[str]:
    return {str(Rule.parse(text)) for text in texts}


def _group(group: PrincipalGroup) -> str:
    check_principal(f"group:{group.name}")
    return group.name


def _members(members: Iterable[str]) -> set[str]:
    for member in members:
        if not member.startswith("user:"):
            raise InvalidRequest(f"{member[:200]!r} cannot be in a group: write user:NAME")
        check_principal(member)
    return set(members)
