"""Rules say who may do what; here is the decision about one action on one resource.

How it works. A rule is `allow|deny PRINCIPAL ACTION RESOURCE`, for example
`allow user:alice write topic:orders-*`. A `RuleBook` holds all rules and the groups of principals.
It makes a `Rights` for a caller: the rules that concern it, sorted by what they say, so that the
order in which they were written never matters. `Rights.decide` names the rule that decides.

Grammar
- PRINCIPAL: `user:NAME`, `group:NAME` (all members of that group), or `*` (every caller that has
  proved who it is).
- ACTION: one of `Action`, or `*`.
- RESOURCE: `cluster`, or KIND:NAME with a kind of `Kind`. A `*` at the end of NAME stands for any
  rest, none included; elsewhere it is refused.

Invariants
1. A deny rule that matches wins over every allow rule; without a rule that allows, it is denied.
2. Whoever may do anything to a resource may describe it, unless a rule denies describing.
3. A token's scopes only narrow: nothing is allowed with them that is denied without them.
4. The result depends on the set of rules and groups alone.

Not here: which action a call needs (`declared.py`), where rules are stored, who the caller is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from semel.protos.errors import InvalidRequest

NAME_CHARACTERS_MAX: Final = 249
REMEMBERED_MAX: Final = 10_000
"""Decisions that are remembered for one caller; beyond it all are forgotten and made again."""
EVERYBODY: Final = "*"
ANY: Final = "*"


class Action(Enum):
    """What can be done to a resource."""

    DESCRIBE = "describe"
    """See that it exists, its settings and figures."""
    READ = "read"
    """Read messages."""
    WRITE = "write"
    """Send messages, and cancel delayed ones."""
    CREATE = "create"
    """Create a topic."""
    ALTER = "alter"
    """Change a topic's settings and queues."""
    DELETE = "delete"
    """Delete a topic, or forget a consumer group."""
    COMMIT = "commit"
    """Be a member of a consumer group: locks, commits, resets."""
    OWN_NAME = "own-name"
    """Be the producer of that name, which fences whoever was it before."""
    TRANSACT = "transact"
    """Begin, commit and abort transactions of that id."""
    OPERATE = "operate"
    """Nodes, moves, drains, feature levels."""
    SECURITY = "security"
    """Rules, groups of principals, passwords."""


class Kind(Enum):
    """What a rule can be about."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    CONSUMER_GROUP = "consumer-group"
    PRODUCER = "producer"
    TRANSACTION = "transaction"


ACTIONS_OF: Final[dict[Kind, tuple[Action, ...]]] = {
    Kind.CLUSTER: (Action.DESCRIBE, Action.OPERATE, Action.SECURITY),
    Kind.TOPIC: (
        Action.DESCRIBE,
        Action.READ,
        Action.WRITE,
        Action.CREATE,
        Action.ALTER,
        Action.DELETE,
    ),
    Kind.CONSUMER_GROUP: (Action.DESCRIBE, Action.COMMIT, Action.DELETE),
    Kind.PRODUCER: (Action.DESCRIBE, Action.OWN_NAME),
    Kind.TRANSACTION: (Action.DESCRIBE, Action.TRANSACT),
}
"""The actions that mean something for each kind; a rule with another one is refused."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource; the cluster's name is empty."""

    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return self.kind.value if self.kind is Kind.CLUSTER else f"{self.kind.value}:{self.name}"


CLUSTER: Final = Resource(Kind.CLUSTER)


@dataclass(frozen=True, slots=True)
class Scope:
    """Actions on resources: what a rule is about, and what a token may be narrowed to."""

    action: Action | None
    """None for all."""
    kind: Kind
    pattern: str
    """A name, or the beginning of names and `*`; empty for the cluster."""

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Reads `ACTION RESOURCE`. Raises InvalidRequest."""
        words = text.split()
        if len(words) != 2:
            raise InvalidRequest(f"{text[:200]!r} is not ACTION RESOURCE")
        return cls(_action(words[0]), *_pattern(words[0], words[1]))

    def __str__(self) -> str:
        action = ANY if self.action is None else self.action.value
        return f"{action} {Resource(self.kind, self.pattern)}"

    def matches(self, action: Action, resource: Resource) -> bool:
        """Whether it is about `action` on `resource`."""
        return (
            (self.action is None or self.action is action)
            and self.kind is resource.kind
            and (
                resource.name.startswith(self.pattern[:-1])
                if self.pattern.endswith(ANY)
                else resource.name == self.pattern
            )
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    allow: bool
    principal: str
    scope: Scope

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Reads `allow|deny PRINCIPAL ACTION RESOURCE`. Raises InvalidRequest."""
        words = text.split()
        if len(words) != 4 or words[0] not in ("allow", "deny"):
            raise InvalidRequest(
                f"{text[:200]!r} is no rule: write `allow|deny PRINCIPAL ACTION RESOURCE`, such as"
                " `allow user:alice write topic:orders-*`"
            )
        return cls(words[0] == "allow", check_principal(words[1]), Scope.parse(" ".join(words[2:])))

    def __str__(self) -> str:
        return f"{'allow' if self.allow else 'deny'} {self.principal} {self.scope}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an action is allowed, and why."""

    allowed: bool
    rule: Rule | None
    """The rule that decides; None if there is none."""
    reason: str
    """For people, in one line."""


class Rights(Protocol):
    """What one caller may do."""

    def decide(self, action: Action, resource: Resource) -> Decision:
        """The decision about `action` on `resource`."""
        ...


class Unlimited:
    """The rights of an administrator: everything, whatever the rules say."""

    def __init__(self, reason: str) -> None:
        self._decision = Decision(True, None, reason)

    def decide(self, action: Action, resource: Resource) -> Decision:
        return self._decision


class RuledRights:
    """What rules give to one caller."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """`rules` are those that concern the caller."""
        ordered = sorted(rules, key=str)
        self._deny = _Matcher(rule for rule in ordered if not rule.allow)
        self._allow = _Matcher(rule for rule in ordered if rule.allow)
        self._known: dict[tuple[Action, Resource], Decision] = {}

    def decide(self, action: Action, resource: Resource) -> Decision:
        known = self._known.get((action, resource))
        if known is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            known = self._known[action, resource] = self._decide(action, resource)
        return known

    def _decide(self, action: Action, resource: Resource) -> Decision:
        if (denying := self._deny.first(action, resource)) is not None:
            return Decision(False, denying, f"denied by the rule `{denying}`")
        if (allowing := self._allow.first(action, resource)) is not None:
            return Decision(True, allowing, f"allowed by the rule `{allowing}`")
        if action is Action.DESCRIBE:
            for other in ACTIONS_OF[resource.kind]:
                if other is not Action.DESCRIBE and self.decide(other, resource).allowed:
                    return self.decide(other, resource)
        return Decision(False, None, "no rule allows it")


class NarrowedRights:
    """Rights that a token narrows to its scopes."""

    def __init__(self, rights: Rights, scopes: Iterable[Scope]) -> None:
        self._rights = rights
        self._scopes = tuple(scopes)

    def decide(self, action: Action, resource: Resource) -> Decision:
        decision = self._rights.decide(action, resource)
        if not decision.allowed or self._covers(action, resource):
            return decision
        if action is Action.DESCRIBE and any(
            self._covers(other, resource) and self._rights.decide(other, resource).allowed
            for other in ACTIONS_OF[resource.kind]
        ):
            return decision
        return Decision(False, None, "the token is not for it")

    def _covers(self, action: Action, resource: Resource) -> bool:
        return any(scope.matches(action, resource) for scope in self._scopes)


class RuleBook:
    """All rules and groups, as they are at one moment; it never changes."""

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        groups: Mapping[str, Collection[str]] | None = None,
        administrators: Collection[str] = (),
    ) -> None:
        """`groups` are the members (`user:NAME`) of each group, by its name. `administrators` may
        do everything."""
        self._rules: dict[str, list[Rule]] = {}
        for rule in set(rules):
            self._rules.setdefault(rule.principal, []).append(rule)
        self._groups: dict[str, list[str]] = {}
        for group, members in (groups or {}).items():
            for member in set(members):
                self._groups.setdefault(member, []).append(f"group:{group}")
        self._administrators = frozenset(administrators)
        self._known: dict[str, Rights] = {}

    def groups_of(self, principal: str) -> tuple[str, ...]:
        """The groups that `principal` is in, as `group:NAME`, by name."""
        return tuple(sorted(self._groups.get(principal, ())))

    def rights_of(self, principal: str) -> Rights:
        """What `principal` may do. The same object while it is remembered."""
        known = self._known.get(principal)
        if known is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            known = self._known[principal] = self._rights_of(principal)
        return known

    def _rights_of(self, principal: str) -> Rights:
        if principal in self._administrators:
            return Unlimited(f"{principal} is an administrator")
        names = (principal, EVERYBODY, *self._groups.get(principal, ()))
        return RuledRights(rule for name in names for rule in self._rules.get(name, ()))


class _Matcher:
    """Rules of one effect, found by what they are about."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._exact: dict[tuple[Kind, str], list[Rule]] = {}
        self._prefixed: dict[Kind, list[Rule]] = {}
        for rule in rules:
            scope = rule.scope
            if scope.pattern.endswith(ANY):
                self._prefixed.setdefault(scope.kind, []).append(rule)
            else:
                self._exact.setdefault((scope.kind, scope.pattern), []).append(rule)

    def first(self, action: Action, resource: Resource) -> Rule | None:
        """The first rule about `action` on `resource`; one that names it comes before prefixes."""
        for rule in self._exact.get((resource.kind, resource.name), ()):
            if rule.scope.action is None or rule.scope.action is action:
                return rule
        for rule in self._prefixed.get(resource.kind, ()):
            if rule.scope.matches(action, resource):
                return rule
        return None


def check_principal(text: str) -> str:
    """`text`, if a rule can be about it. Raises InvalidRequest."""
    kind, colon, name = text.partition(":")
    if text != EVERYBODY and not (kind in ("user", "group") and colon and _is_name(name)):
        raise InvalidRequest(
            f"{text[:200]!r} is no principal: write user:NAME, group:NAME, or * for everybody"
        )
    return text


def _action(text: str) -> Action | None:
    if text == ANY:
        return None
    try:
        return Action(text)
    except ValueError:
        known = ", ".join(action.value for action in Action)
        raise InvalidRequest(f"{text[:200]!r} is no action; known are {known} and *") from None


def _pattern(action: str, text: str) -> tuple[Kind, str]:
    kind_text, colon, name = text.partition(":")
    try:
        kind = Kind(kind_text)
    except ValueError:
        kind = None
    if kind is None or bool(colon) is (kind is Kind.CLUSTER):
        known = ", ".join(f"{kind.value}:NAME" for kind in Kind if kind is not Kind.CLUSTER)
        raise InvalidRequest(f"{text[:200]!r} is no resource: write cluster, or one of {known}")
    if kind is not Kind.CLUSTER and not (name == ANY or _is_name(name.removesuffix(ANY))):
        raise InvalidRequest(
            f"{text[:200]!r} names no resource: a name has 1 to {NAME_CHARACTERS_MAX} printable"
            " characters without spaces, and * only at its end"
        )
    wanted = _action(action)
    if wanted is not None and wanted not in ACTIONS_OF[kind]:
        allowed = ", ".join(each.value for each in ACTIONS_OF[kind])
        raise InvalidRequest(
            f"nobody can {action} a {kind.value}: what a rule can say there is {allowed}, or *"
        )
    return kind, name


def _is_name(text: str) -> bool:
    return (
        0 < len(text) <= NAME_CHARACTERS_MAX
        and text.isprintable()
        and ANY not in text
        and not any(character.isspace() for character in text)
    )
