"""Ask the store what the nodes have in common, who is odd, and what only a comparison shows.

Every detector is one statement that adds rows to the table `hit`: a node, a check, and what is odd about it. Problems are those rows, gathered.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dsdoctor import __version__
from dsdoctor.errors import InputError, unknown_name
from dsdoctor.facts import Sections
from dsdoctor.findings import Disruption, Remedy, Severity, Verify
from dsdoctor.fleet.answer import Consensus, Counts, Detail, Fleet, Group, Node, Problem, Rejection, Seen, Value, Work
from dsdoctor.fleet.digest import FACTS, FAMILIES
from dsdoctor.fleet.documents import Rejected
from dsdoctor.fleet.names import folded, natural
from dsdoctor.fleet.store import Store
from dsdoctor.matrix import Knowledge
from dsdoctor.rows_fleet import Fleet as Limits

GROUP_KEYS = ("product", "image", "label-prefix")
SHOWN_DETAILS = 5
SHOWN_SOURCES = 5
NCCL_CHECK = "nccl.version-differs"
DOMAIN_FACTS = ("driver", "service.nvidia-fabricmanager", "service.nvidia-imex")
_TITLES = {fact.id: fact.title for fact in FACTS} | {"product": "GPU"}


def store(limits: Limits) -> Store:
    """An empty store that keeps what these limits say is compared."""
    return Store(
        packages=[name for row in limits.packages for name in row.names],
        of_one_node="|".join(f"(?:{row.regex})" for row in limits.of_one_node),
    )


def compare(reports: Store, knowledge: Knowledge, group_by: Sequence[str], today: datetime.date, seen: Sequence[Seen] = ()) -> Fleet:
    """The answer on all reports of the store, and on what was seen beside them. Raises InputError when there is none, UsageError for a group key that does not exist."""
    limits: Limits = knowledge.matrix("fleet")
    _nodes(reports, group_by)
    if not reports.rows("SELECT 1 FROM node LIMIT 1"):
        raise InputError(_nothing(reports.rejected))
    _facts(reports, limits, group_by)
    reports.run(_HIT)
    _odd_facts(reports, limits)
    _slow_gpus(reports, limits)
    _clocks(reports, limits)
    _domains(reports)
    reports.run(_NO_REPORT)
    reports.run(_FINDINGS)
    for one in seen:
        reports.run(
            _SEEN, check=one.check, severity=one.severity.value, subject=one.subject, detail=one.detail, cause=one.cause, node=one.node
        )
    problems, hosts_of = _problems(reports)
    return _answer(reports, knowledge, group_by, today, problems, hosts_of)


# --- one row for each node --------------------------------------------------------------------------------------------


def _nodes(reports: Store, group_by: Sequence[str]) -> None:
    columns = ", ".join(f'd."{fact.id}"' for fact in FACTS)
    reports.run(
        "CREATE TABLE node AS"
        " SELECT row_number() OVER (ORDER BY k.name) AS id, d.rowid AS seq, d.name, d.kind, d.source, d.reason, d.dsdoctor, d.taken_at, d.taken_s,"
        " d.received_s, coalesce(d.verdict, 'unknown') AS verdict, d.product, d.gpus, d.image, d.domain, d.families, k.older,"
        f" {_group_sql(group_by)} AS grp, {columns}"
        " FROM (SELECT rowid AS seq, name, count(*) OVER (PARTITION BY name) - 1 AS older FROM digest"
        "   QUALIFY row_number() OVER (PARTITION BY name ORDER BY kind = 'report' DESC, taken_s DESC NULLS LAST, rowid DESC) = 1) k"
        " JOIN digest d ON d.rowid = k.seq"
    )


def _group_sql(keys: Sequence[str]) -> str:
    parts = []
    for key in keys:
        family = next((item for item in FAMILIES if key.startswith(f"{item.id}.")), None)
        if key in ("product", "image"):
            parts.append(f"coalesce(d.{key}, '{key} not known')")
        elif key == "label-prefix":
            parts.append("coalesce(nullif(regexp_replace(d.name, '[0-9]+[^0-9]*$', ''), ''), 'no prefix')")
        elif key in _TITLES:
            parts.append(f"coalesce(d.\"{key}\", '{key} not known')")
        elif family is not None:
            quoted = key.replace("'", "''")
            parts.append(
                f"'{quoted.partition('.')[2]} ' || coalesce([o.value FOR o IN d.others IF o.fact = '{quoted}'][1], '{family.absent}')"
            )
        else:
            families = tuple(f"{item.id}.NAME" for item in FAMILIES)
            raise unknown_name("--group-by key", key, (*GROUP_KEYS, *_TITLES, *families))
    text = f"concat_ws(', ', {', '.join(parts)})" if parts else "'all nodes'"
    return text if keys == ["label-prefix"] else f"CASE WHEN d.kind = 'report' THEN {text} ELSE '' END"


def _nothing(rejected: Sequence[Rejected]) -> str:
    if not rejected:
        return "no report was found; fleet merge takes files of dsdoctor check --format json, and searches folders for .json, .ndjson and .parquet"
    first = min(rejected, key=lambda item: item.source)
    return f"none of {len(rejected)} documents is a report; {first.source}: {first.reason}"


# --- what most nodes have, and who has not ----------------------------------------------------------------------------


def _facts(reports: Store, limits: Limits, group_by: Sequence[str]) -> None:
    """Tables fact (a node's value), tally (how often each value is), consensus (what it should be) and odd (who has another)."""
    own = [f"{{'fact': '{fact.id}', 'value': n.\"{fact.id}\"}}" for fact in FACTS]
    if "product" not in group_by:
        own.append("{'fact': 'product', 'value': n.product}")
    reports.run(
        "CREATE TABLE fact AS SELECT id, grp, x.fact AS fact, x.value AS value FROM"
        f" (SELECT n.id, n.grp, unnest([{', '.join(own)}] || coalesce(d.others, [])) AS x"
        " FROM node n JOIN digest d ON d.rowid = n.seq WHERE n.kind = 'report') WHERE x.value <> ''"
    )
    families = ", ".join(f"('{item.id}', '{item.absent}')" for item in FAMILIES)
    reports.run(
        "CREATE TABLE tally AS SELECT grp, fact, value, false AS absent, count(DISTINCT id) AS n FROM fact GROUP BY grp, fact, value;"
        "INSERT INTO tally SELECT t.grp, t.fact, any_value(f.absent), true, any_value(k.n) - sum(t.n) AS missing FROM tally t"
        f" JOIN (VALUES {families}) f(family, absent) ON t.fact LIKE f.family || '.%'"
        " JOIN (SELECT grp, family, count(*) AS n FROM (SELECT grp, unnest(families) AS family FROM node) GROUP BY grp, family) k"
        " ON k.grp = t.grp AND k.family = f.family"
        " GROUP BY t.grp, t.fact HAVING missing > 0"
    )
    reports.run(
        "CREATE TABLE consensus AS SELECT *, (agree > $share * known AND known > 1) AS has, (NOT has AND variants > $shown) AS varying FROM"
        " (SELECT grp, fact, sum(n)::BIGINT AS known, max(n) AS agree, count(*) AS variants, arg_max(value, n) AS value, arg_max(absent, n) AS absent"
        " FROM tally GROUP BY grp, fact)",
        share=limits.limit("consensus-share"),
        shown=int(limits.limit("shown-values")),
    )
    reports.run(
        "CREATE TABLE odd AS SELECT c.grp, c.fact, f.value, f.id FROM fact f JOIN consensus c ON c.grp = f.grp AND c.fact = f.fact"
        " WHERE c.variants > 1 AND NOT c.varying AND NOT (c.has AND NOT c.absent AND c.value = f.value);"
        "INSERT INTO odd SELECT c.grp, c.fact, t.value, n.id FROM tally t JOIN consensus c ON c.grp = t.grp AND c.fact = t.fact"
        " JOIN node n ON n.grp = t.grp AND list_contains(n.families, split_part(t.fact, '.', 1))"
        " ANTI JOIN fact f ON f.id = n.id AND f.fact = t.fact"
        " WHERE t.absent AND NOT c.varying AND NOT (c.has AND c.absent)"
    )


_HIT = (
    "CREATE TABLE hit (check_id VARCHAR, severity VARCHAR, origin VARCHAR, grp VARCHAR, subject VARCHAR, value VARCHAR, expected VARCHAR,"
    " id BIGINT, detail VARCHAR, root VARCHAR, cause VARCHAR, remedy VARCHAR)"
)


def _odd_facts(reports: Store, limits: Limits) -> None:
    """NCCL must be the same on all ranks; a variable that is split evenly is a note."""
    reports.run(
        f"INSERT INTO hit SELECT CASE c.fact WHEN 'nccl' THEN '{NCCL_CHECK}' ELSE 'fleet.node-differs' END,"
        " CASE WHEN c.fact = 'nccl' THEN 'error' WHEN NOT c.has AND c.fact LIKE 'env.%' THEN 'info' ELSE 'warning' END,"
        " 'fleet', c.grp, c.fact, CASE WHEN c.has AND few.n <= $shown THEN o.value ELSE '' END, CASE WHEN c.has THEN c.value ELSE '' END,"
        " o.id, o.value, '', '', NULL"
        " FROM odd o JOIN consensus c ON c.grp = o.grp AND c.fact = o.fact"
        " JOIN (SELECT grp, fact, count(DISTINCT value) AS n FROM odd GROUP BY grp, fact) few ON few.grp = o.grp AND few.fact = o.fact",
        shown=int(limits.limit("shown-values")),
    )


def _slow_gpus(reports: Store, limits: Limits) -> None:
    reports.run(
        "CREATE TABLE rate AS SELECT id, test, path, grp, gpu, rate, unit, median, (median - rate) / greatest(1.4826 * spread, $floor * median) AS z FROM"
        " (SELECT *, median(rate) OVER same AS median, mad(rate) OVER same AS spread, count(*) OVER same AS n FROM"
        "  (SELECT n.id, x.test, CASE WHEN x.test = 'p2p' THEN '' ELSE coalesce(x.path, '') END AS path, x.rate, x.unit,"
        "   CASE WHEN x.gpu IS NOT NULL THEN 'GPU ' || x.gpu WHEN x.test = 'p2p' THEN 'GPU ' || x.path ELSE 'all GPUs' END AS gpu,"
        "   coalesce(n.product, '') || CASE WHEN x.gpu IS NULL AND x.test <> 'p2p' THEN ' × ' || n.gpus ELSE '' END AS grp"
        "   FROM (SELECT n.id, n.product, n.gpus, unnest(d.rates) AS x FROM node n JOIN digest d ON d.rowid = n.seq) n)"
        "  WINDOW same AS (PARTITION BY grp, test, path, unit))"
        " WHERE n >= $sample AND rate < (1 - $loss) * median AND z >= $z",
        floor=limits.limit("rate-least-spread"),
        sample=int(limits.limit("rate-least-sample")),
        loss=limits.limit("rate-least-loss"),
        z=limits.limit("rate-z-score"),
    )
    reports.run(
        "INSERT INTO hit SELECT 'fleet.slow-gpu', 'warning', 'fleet', grp, trim(test || ' ' || path), '', round(median, 1) || ' ' || unit, id,"
        " gpu || ': ' || round(rate, 1) || ' ' || unit || ', ' || round(100 * (1 - rate / median))::BIGINT || ' % below the median, z = -' || round(z, 1),"
        " '', '', NULL FROM rate"
    )


def _clocks(reports: Store, limits: Limits) -> None:
    """A report says when its facts were taken, by the node's clock; a collector adds when it received it, by its own."""
    reports.run(
        "INSERT INTO hit SELECT 'fleet.clock-skew', 'warning', 'fleet', '', 'clock', '', 'within ' || $limit || ' s of the other nodes', id,"
        " 'the clock is ' || round(abs(ahead))::BIGINT || ' s ' || CASE WHEN ahead > 0 THEN 'ahead of' ELSE 'behind' END || ' the others', '', '', NULL"
        " FROM (SELECT id, (taken_s - received_s) - median(taken_s - received_s) OVER () AS ahead, count(*) OVER () AS n"
        "  FROM node WHERE taken_s IS NOT NULL AND received_s IS NOT NULL) WHERE n > 2 AND abs(ahead) > $limit",
        limit=int(limits.limit("clock-skew-seconds")),
    )


def _domains(reports: Store) -> None:
    """Nodes of one NVLink domain need one driver and one Fabric Manager, whatever the rest of the fleet has."""
    reports.run(
        "INSERT INTO hit SELECT 'fleet.domain-differs', 'error', 'fleet', domain, fact, CASE WHEN agree * 2 > n THEN value ELSE '' END,"
        " CASE WHEN agree * 2 > n THEN usual ELSE '' END, id, value, '', '', NULL FROM"
        " (SELECT *, mode(value) OVER same AS usual, count(*) OVER same AS n, count(*) OVER alike AS mine,"
        "  max(mine_n) OVER same AS agree FROM"
        "  (SELECT n.id, n.domain, f.fact, f.value, count(*) OVER (PARTITION BY n.domain, f.fact, f.value) AS mine_n"
        "   FROM node n JOIN fact f ON f.id = n.id WHERE n.domain IS NOT NULL AND list_contains($facts, f.fact))"
        "  WINDOW same AS (PARTITION BY domain, fact), alike AS (PARTITION BY domain, fact, value))"
        " WHERE agree < n AND NOT (agree * 2 > n AND value = usual)",
        facts=list(DOMAIN_FACTS),
    )


_NO_REPORT = (
    "INSERT INTO hit SELECT 'fleet.no-report', 'error', 'fleet', '', coalesce(nullif(reason, ''), 'no reason was given'), '', '', id,"
    " coalesce(reason, ''), '', '', NULL FROM node WHERE kind = 'no-report'"
)
_SEEN = (
    "INSERT INTO hit SELECT $check, $severity, 'fleet', '', $subject, '', '', id, $detail, '', $cause, NULL FROM node WHERE name = $node"
)
_FINDINGS = (
    "INSERT INTO hit SELECT x.check, CASE WHEN x.severity IN ('error', 'warning', 'info') THEN x.severity ELSE 'info' END, 'node', '', '', '',"
    " coalesce(x.expected, ''), id, CASE WHEN contains(x.summary, x.subject) THEN x.summary ELSE concat_ws(': ', x.subject, x.summary) END, coalesce(x.root, ''), coalesce(x.cause, ''), x.remedy"
    " FROM (SELECT n.id, unnest(d.findings) AS x FROM node n JOIN digest d ON d.rowid = n.seq) WHERE x.check IS NOT NULL"
)


def findings(reports: Store) -> Iterator[tuple[Any, ...]]:
    """Every row behind the problems, after `compare`: node, group, and the columns of `FINDING_COLUMNS` that follow."""
    yield from reports.rows(
        "SELECT n.name, n.grp, h.origin, h.check_id, h.severity, h.subject, h.detail, h.expected, h.root, n.source"
        " FROM hit h JOIN (SELECT id, name, grp, source FROM node) n USING (id) ORDER BY n.id, h.severity, h.check_id, h.subject, h.detail"
    )


FINDING_COLUMNS = ("node", "group", "origin", "check", "severity", "subject", "text", "expected", "follows_from", "source")


# --- gathered ---------------------------------------------------------------------------------------------------------


def _problems(reports: Store) -> tuple[tuple[Problem, ...], Mapping[int, list[str]]]:
    """The problems, worst first, and the nodes of each."""
    found = reports.rows(
        "SELECT check_id, severity, origin, grp, subject, value, mode(expected), list(DISTINCT n.name), mode(detail), mode(cause),"
        f" arg_min({{'node': n.name, 'text': detail}}, n.id, {SHOWN_DETAILS}), count(DISTINCT detail)"
        " FROM hit JOIN (SELECT id, name FROM node) n USING (id) WHERE root = '' GROUP BY check_id, severity, origin, grp, subject, value"
    )
    found.sort(key=lambda row: (Severity(row[1]).rank, row[2], -len(row[7]), row[0], row[3], row[4], row[5]))
    problems, hosts_of = [], {}
    for number, (check, severity, origin, group, subject, value, expected, names, detail, cause, details, variants) in enumerate(found, 1):
        hosts_of[number] = sorted(names, key=natural)
        problems.append(
            Problem(
                number=number, check=check, severity=Severity(severity), origin=origin, group=group, subject=subject,
                summary=_summary(check, subject, value, expected, detail, variants, len(names)),
                cause=_CAUSES.get(check, cause), expected=expected if origin == "node" or check in _CAUSES else "", nodes=len(names),
                hosts=folded(names), details=tuple(Detail(node=item["node"], text=item["text"]) for item in details or ()),
            )
        )  # fmt: skip
    return tuple(problems), hosts_of


_CAUSES = {
    NCCL_CHECK: "All ranks of a job need the same full version of NCCL; mixed ones fail at the start of the job or hang.",
    "fleet.slow-gpu": "One slow GPU holds back every GPU that works with it in step.",
    "fleet.clock-skew": "Logs of this node cannot be put in order with others, and certificates and leases may count as expired.",
    "fleet.domain-differs": "The nodes of an NVLink domain share one fabric; it needs the same driver and Fabric Manager on all of them.",
    "fleet.no-report": "Nothing is known of the node; that is neither health nor sickness.",
    "fleet.node-differs": "",
}


def _summary(check: str, subject: str, value: str, expected: str, detail: str, variants: int, nodes: int) -> str:
    if check == "fleet.slow-gpu":
        return f"{subject} is slow: {detail}" if nodes == 1 else f"{subject} is slow on {nodes} nodes; the median is {expected}"
    if check == "fleet.no-report":
        return f"no report: {subject}"
    if check == "fleet.clock-skew":
        return detail if variants == 1 else "the clocks are not those of the other nodes"
    if check in (NCCL_CHECK, "fleet.node-differs", "fleet.domain-differs"):
        title = title_of(subject)
        if expected and value:
            return f"{title}: {value}; most nodes: {expected}"
        return (
            f"{title}: {variants} other values; most nodes: {expected}"
            if expected
            else f"{title}: {variants} values, and none is that of most nodes"
        )
    return detail if variants == 1 else f"{detail} (and {variants - 1} other wordings)"


def title_of(fact: str) -> str:
    """A fact in words: `Driver`, `Variable NCCL_DEBUG`."""
    family, _, name = fact.partition(".")
    title = next((item.title for item in FAMILIES if item.id == family), "")
    return f"{title} {name}" if title and name else _TITLES.get(fact, fact)


def _answer(
    reports: Store,
    knowledge: Knowledge,
    group_by: Sequence[str],
    today: datetime.date,
    problems: tuple[Problem, ...],
    hosts_of: Mapping[int, list[str]],
) -> Fleet:
    of_node: dict[str, list[int]] = {}
    for number, names in hosts_of.items():
        for name in names:
            of_node.setdefault(name, []).append(number)
    rows = reports.rows("SELECT name, grp, kind, verdict, reason, taken_at, dsdoctor, source, older FROM node ORDER BY id")
    nodes = [
        Node(
            name=name, group=group, verdict=_verdict_word(verdict) if kind == "report" else "no-report", reason=reason or "", taken_at=taken_at or "",
            dsdoctor=version or "", source=source or "", problems=tuple(of_node.get(name, ())),
        )
        for name, group, kind, verdict, reason, taken_at, version, source, _ in rows
    ]  # fmt: skip
    nodes.sort(key=lambda node: natural(node.name))
    verdicts = [node.verdict for node in nodes]
    severities = [problem.severity for problem in problems]
    twice = {row[0]: int(row[8]) for row in rows if row[8]}
    versions: dict[str, int] = {}
    for node in nodes:
        if node.dsdoctor:
            versions[node.dsdoctor] = versions.get(node.dsdoctor, 0) + 1
    counts = Counts(
        nodes=len(nodes),
        healthy=verdicts.count("healthy"),
        degraded=verdicts.count("degraded"),
        broken=verdicts.count("broken"),
        unknown=verdicts.count("unknown"),
        no_report=verdicts.count("no-report"),
        duplicates=sum(twice.values()),
        rejected=len(reports.rejected),
        errors=severities.count(Severity.ERROR),
        warnings=severities.count(Severity.WARNING),
        infos=severities.count(Severity.INFO),
    )
    return Fleet(
        dsdoctor=__version__,
        verdict=_verdict(severities, counts),
        group_by=tuple(group_by),
        counts=counts,
        versions=dict(sorted(versions.items())),
        notices=tuple(_notices(counts, twice, versions)),
        groups=_groups(reports),
        problems=problems,
        work=_work(reports, knowledge, problems, hosts_of),
        rejected=rejections(reports.rejected),
        knowledge=knowledge.stamp(today),
        nodes=tuple(nodes),
    )


def _verdict_word(text: str) -> str:
    return text if text in ("healthy", "degraded", "broken") else "unknown"


def _verdict(severities: Sequence[Severity], counts: Counts) -> str:
    if Severity.ERROR in severities or counts.broken:
        return "broken"
    if Severity.WARNING in severities or counts.degraded:
        return "degraded"
    return "healthy" if counts.healthy and not counts.unknown else "unknown"


def _notices(counts: Counts, twice: Mapping[str, int], versions: Mapping[str, int]) -> Iterable[str]:
    if counts.rejected:
        yield f"{counts.rejected} of the inputs {'is' if counts.rejected == 1 else 'are'} no report and left out"
    if twice:
        more = "an older report that is" if counts.duplicates == 1 else f"{counts.duplicates} older reports that are"
        yield f"{more} left out, of {folded(twice)}: the newest of each node counts"
    if len(versions) > 1:
        yield f"reports of different dsdoctor versions: {', '.join(f'{name} on {number}' for name, number in sorted(versions.items()))}"


def _groups(reports: Store) -> tuple[Group, ...]:
    members: dict[str, list[str]] = dict(reports.rows("SELECT grp, list(name) FROM node WHERE kind = 'report' GROUP BY grp"))
    others: dict[tuple[str, str], list[Value]] = {}
    for group, fact, value, names in reports.rows(
        "SELECT o.grp, o.fact, o.value, list(DISTINCT n.name) AS names FROM odd o JOIN (SELECT id, name FROM node) n USING (id)"
        " GROUP BY o.grp, o.fact, o.value ORDER BY len(names) DESC, o.value"
    ):
        others.setdefault((group, fact), []).append(Value(value=value, nodes=len(names), hosts=folded(names)))
    order = {fact.id: number for number, fact in enumerate(FACTS)}
    facts: dict[str, list[Consensus]] = {}
    varying: dict[str, list[str]] = {}
    for group, fact, known, agree, value, has, varies in reports.rows(
        "SELECT grp, fact, known, agree, value, has, varying FROM consensus ORDER BY fact"
    ):
        if varies:
            varying.setdefault(group, []).append(fact)
            continue
        is_it = has or known == 1
        facts.setdefault(group, []).append(
            Consensus(
                fact=fact, title=title_of(fact), value=value if is_it else None, agree=agree if is_it else 0, known=known,
                others=tuple(others.get((group, fact), ())),
            )
        )  # fmt: skip
    return tuple(
        Group(
            name=name,
            nodes=len(hosts),
            hosts=folded(hosts),
            facts=tuple(sorted(facts.get(name, ()), key=lambda item: (order.get(item.fact, len(order)), item.fact))),
            varying=tuple(varying.get(name, ())),
        )
        for name, hosts in sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _work(reports: Store, knowledge: Knowledge, problems: Sequence[Problem], hosts_of: Mapping[int, list[str]]) -> tuple[Work, ...]:
    """What to do, each remedy once: the first of every finding, and what the comparison asks for. Notes ask for nothing."""
    found: dict[tuple[Disruption, str], tuple[Remedy, set[str], set[str]]] = {}

    def add(remedy: Remedy, checks: Iterable[str], names: Iterable[str]) -> None:
        _, all_checks, all_names = found.setdefault((remedy.disruption, remedy.summary), (remedy, set(), set()))
        all_checks.update(checks)
        all_names.update(names)

    for text, checks, names in reports.rows(
        "SELECT remedy, list(DISTINCT check_id), list(DISTINCT n.name) FROM hit JOIN (SELECT id, name FROM node) n USING (id)"
        " WHERE remedy IS NOT NULL AND root = '' AND severity <> 'info' GROUP BY remedy ORDER BY count(*) DESC, remedy"
    ):
        remedy = _remedy(text)
        if remedy is not None:
            add(remedy, checks, names)
    for problem in problems:
        if problem.origin == "fleet" and problem.severity is not Severity.INFO:
            fill = {"version": problem.expected} if problem.check == NCCL_CHECK and problem.expected else {}
            with contextlib.suppress(KeyError):
                for remedy in knowledge.remedies(problem.check, Sections())(**fill)[:1]:
                    add(remedy, (problem.check,), hosts_of[problem.number])
    ranked = list(Disruption)
    return tuple(
        Work(remedy=remedy, checks=tuple(sorted(checks)), nodes=len(names), hosts=folded(names))
        for remedy, checks, names in sorted(
            found.values(), key=lambda item: (ranked.index(item[0].disruption), -len(item[2]), item[0].summary)
        )
    )


def _remedy(text: str) -> Remedy | None:
    """The remedy in a report of whatever version, as far as it has the shape that we know."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("summary"), str) or not data["summary"]:
        return None

    def word(key: str, holder: Mapping[str, Any] = data) -> str:
        value = holder.get(key)
        return value if isinstance(value, str) else ""

    def words(key: str) -> tuple[str, ...]:
        value = data.get(key)
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()

    verify, disruption = data.get("verify"), data.get("disruption")
    return Remedy(
        summary=word("summary"),
        when=word("when"),
        commands=words("commands"),
        steps=words("steps"),
        inspect=words("inspect"),
        verify=Verify(command=word("command", verify), prints=word("prints", verify)) if isinstance(verify, dict) else None,
        disruption=Disruption(disruption) if disruption in {item.value for item in Disruption} else Disruption.NONE,
        needs_root=data.get("needs_root") is True,
        drain=data.get("drain") is True,
        risk=word("risk"),
        not_when=word("not_when"),
        sources=words("sources"),
    )


_PLACE = re.compile(r"(?:line \d+(?:, column \d+)?|byte \d+|at \d+)")


def rejections(rejected: Sequence[Rejected]) -> tuple[Rejection, ...]:
    """By reason, whatever the line it names."""
    groups: dict[str, list[Rejected]] = {}
    for item in sorted(rejected, key=lambda item: natural(item.source)):
        groups.setdefault(_PLACE.sub("…", item.reason), []).append(item)
    return tuple(
        Rejection(
            reason=items[0].reason if len(items) == 1 else reason,
            count=len(items),
            sources=tuple(item.source for item in items[:SHOWN_SOURCES]),
        )
        for reason, items in sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    )
