"""Rules: every decision against a naive model that looks at all rules each time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest
from semel.protos.security import rules
from semel.protos.security.rules import (
    ACTIONS_OF,
    CLUSTER,
    Action,
    Kind,
    NarrowedRights,
    Resource,
    Rule,
    RuleBook,
    Scope,
)

NAMES = ("a", "ab", "abc", "b", "ba")
PATTERNS = (*NAMES, "*", "a*", "ab*", "b*")
USERS = ("user:u", "user:v", "user:w")
GROUPS = ("g", "h")


def resources(kind: Kind) -> list[Resource]:
    return [CLUSTER] if kind is Kind.CLUSTER else [Resource(kind, name) for name in NAMES]


ASKED = [
    (action, resource)
    for kind in Kind
    for action in ACTIONS_OF[kind]
    for resource in resources(kind)
]
SCOPES = [
    Scope(action, kind, pattern)
    for kind in Kind
    for action in (None, *ACTIONS_OF[kind])
    for pattern in (("",) if kind is Kind.CLUSTER else PATTERNS)
]
scopes = st.sampled_from(SCOPES)
principals = st.sampled_from([*USERS, *(f"group:{name}" for name in GROUPS), "*"])
one_rule = st.builds(Rule, st.booleans(), principals, scopes)
books = st.lists(one_rule, max_size=12)
memberships = st.dictionaries(
    st.sampled_from(GROUPS), st.lists(st.sampled_from(USERS), max_size=3), max_size=2
)


def naively(
    book: list[Rule], groups: dict[str, list[str]], who: str, action: Action, resource: Resource
) -> bool:
    """What the words of the grammar say, read one rule after the other."""

    def about(rule: Rule, wanted: Action) -> bool:
        concerns = rule.principal in ("*", who) or (
            who in groups.get(rule.principal.removeprefix("group:"), [])
            and rule.principal.startswith("group:")
        )
        pattern = rule.scope.pattern
        if pattern[-1:] == "*":
            names = resource.name[: len(pattern) - 1] == pattern[:-1]
        else:
            names = resource.name == pattern
        return (
            concerns
            and rule.scope.kind == resource.kind
            and rule.scope.action in (None, wanted)
            and names
        )

    def plainly(wanted: Action) -> bool | None:
        effects = {rule.allow for rule in book if about(rule, wanted)}
        return None if not effects else False not in effects

    said = plainly(action)
    if said is None and action is Action.DESCRIBE:
        return any(plainly(other) for other in ACTIONS_OF[resource.kind])
    return bool(said)


@settings(max_examples=200, deadline=None)
@given(books, memberships)
def test_every_decision_is_what_the_rules_say(
    book: list[Rule], groups: dict[str, list[str]]
) -> None:
    made = RuleBook(book, groups)
    for who in USERS:
        rights = made.rights_of(who)
        for action, resource in ASKED:
            decision = rights.decide(action, resource)
            assert decision.allowed == naively(book, groups, who, action, resource), (
                f"{who} {action.value} {resource}"
            )
            if decision.rule is not None:
                assert decision.rule in book
                assert decision.rule.allow is decision.allowed
                assert str(decision.rule) in decision.reason
                if decision.rule.scope.action not in (None, action):
                    assert (decision.allowed, action) == (True, Action.DESCRIBE)


@settings(max_examples=100, deadline=None)
@given(books, memberships, st.randoms(use_true_random=False))
def test_the_order_of_the_rules_never_matters(
    book: list[Rule], groups: dict[str, list[str]], chance: random.Random
) -> None:
    other = [*book, *book]
    chance.shuffle(other)
    turned = {name: list(reversed(groups[name])) for name in reversed(list(groups))}
    for who in USERS:
        one, two = RuleBook(book, groups).rights_of(who), RuleBook(other, turned).rights_of(who)
        for asked in ASKED:
            assert one.decide(*asked) == two.decide(*asked)


@settings(max_examples=100, deadline=None)
@given(books, memberships, st.lists(scopes, max_size=4))
def test_a_tokens_scopes_only_narrow(
    book: list[Rule], groups: dict[str, list[str]], narrowed_to: list[Scope]
) -> None:
    as_rules = [Rule(True, "*", scope) for scope in narrowed_to]
    rights = RuleBook(book, groups).rights_of("user:u")
    narrowed = NarrowedRights(rights, narrowed_to)
    for action, resource in ASKED:
        allowed = narrowed.decide(action, resource).allowed
        assert not allowed or rights.decide(action, resource).allowed
        assert not allowed or naively(as_rules, {}, "user:u", action, resource)
        if action is not Action.DESCRIBE:
            assert allowed == (
                rights.decide(action, resource).allowed
                and naively(as_rules, {}, "user:u", action, resource)
            )


@given(one_rule)
def test_a_rule_reads_back_as_it_was_written(rule: Rule) -> None:
    assert Rule.parse(str(rule)) == rule


def test_nothing_is_allowed_without_rules() -> None:
    rights = RuleBook().rights_of("user:u")
    assert not any(rights.decide(*asked).allowed for asked in ASKED)


def test_an_administrator_may_do_everything_whatever_is_denied() -> None:
    rule = Rule.parse("deny * * topic:*")
    rights = RuleBook([rule], administrators=["user:root"]).rights_of("user:root")
    assert all(rights.decide(*asked).allowed for asked in ASKED)


def test_groups_of_a_principal_are_told_by_name() -> None:
    book = RuleBook(groups={"z": ["user:u"], "a": ["user:u", "user:v"]})
    assert book.groups_of("user:u") == ("group:a", "group:z")
    assert book.groups_of("user:w") == ()


def test_a_rule_that_names_the_resource_is_told_before_a_prefix() -> None:
    book = RuleBook(map(Rule.parse, ("deny * read topic:a*", "deny user:u read topic:abc")))
    decision = book.rights_of("user:u").decide(Action.READ, Resource(Kind.TOPIC, "abc"))
    assert str(decision.rule) == "deny user:u read topic:abc"


def test_decisions_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "REMEMBERED_MAX", 3)
    book = RuleBook([Rule.parse("allow user:u read topic:1*")])
    rights = book.rights_of("user:u")
    for number in range(20):
        allowed = rights.decide(Action.READ, Resource(Kind.TOPIC, str(number))).allowed
        assert allowed == str(number).startswith("1")
        assert not book.rights_of(f"user:{number}").decide(Action.READ, CLUSTER).allowed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no rule"),
        ("allow user:u read", "is no rule"),
        ("permit user:u read topic:a", "is no rule"),
        ("allow user:u read topic:a twice", "is no rule"),
        ("allow alice read topic:a", "is no principal"),
        ("allow user: read topic:a", "is no principal"),
        ("allow user:a* read topic:a", "is no principal"),
        ("allow team:a read topic:a", "is no principal"),
        ("allow user:u peruse topic:a", "is no action"),
        ("allow user:u READ topic:a", "is no action"),
        ("allow user:u read a", "is no resource"),
        ("allow user:u read topic", "is no resource"),
        ("allow user:u read cluster:", "is no resource"),
        ("allow user:u operate cluster:x", "is no resource"),
        ("allow user:u read topic:", "names no resource"),
        ("allow user:u read topic:a*b", "names no resource"),
        ("allow user:u read topic:**", "names no resource"),
        (f"allow user:u read topic:{'a' * 250}", "names no resource"),
        ("allow user:u operate topic:a", "nobody can operate a topic"),
        ("allow user:u commit topic:a", "nobody can commit a topic"),
        ("deny user:u read cluster", "nobody can read a cluster"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        Rule.parse(text)


def test_a_scope_that_means_nothing_is_refused() -> None:
    for text in ("read", "read topic:a now", "read topic:a*b", "peruse topic:a"):
        with pytest.raises(InvalidRequest):
            Scope.parse(text)


Plant = Callable[[pytest.MonkeyPatch], None]


def _deny_forgotten(patch: pytest.MonkeyPatch) -> None:
    def only_allows(self: rules.RuledRights, found: list[Rule]) -> None:
        self._deny = rules._Matcher(())
        self._allow = rules._Matcher(rule for rule in found if rule.allow)
        self._known = {}

    patch.setattr(rules.RuledRights, "__init__", only_allows)


def _prefix_is_a_name(patch: pytest.MonkeyPatch) -> None:
    def equal(self: Scope, action: Action, resource: Resource) -> bool:
        return self.pattern.removesuffix("*") == resource.name

    patch.setattr(Scope, "matches", equal)


def _groups_forgotten(patch: pytest.MonkeyPatch) -> None:
    def alone(self: RuleBook, principal: str) -> rules.Rights:
        return rules.RuledRights(
            rule for name in (principal, "*") for rule in self._rules.get(name, ())
        )

    patch.setattr(RuleBook, "_rights_of", alone)


@pytest.mark.parametrize("plant", [_deny_forgotten, _prefix_is_a_name, _groups_forgotten])
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    book = [
        Rule.parse("allow group:g write topic:a*"),
        Rule.parse("deny user:v write topic:ab"),
        Rule.parse("allow user:w describe topic:b"),
    ]
    groups = {"g": ["user:u", "user:v"]}

    def differs() -> bool:
        made = RuleBook(book, groups)
        return any(
            made.rights_of(who).decide(*asked).allowed != naively(book, groups, who, *asked)
            for who in USERS
            for asked in ASKED
        )

    assert not differs()
    plant(monkeypatch)
    assert differs()
