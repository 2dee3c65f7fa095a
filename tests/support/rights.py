"""What each role may do, read from the catalogue and written as the table that stands in a room's rights.md."""

from collections import defaultdict

import psycopg

from migrations.run import ROLES

SHOWN = tuple(sorted(ROLES))
_LETTERS = {"SELECT": "read", "INSERT": "add", "UPDATE": "change", "DELETE": "delete", "USAGE": "use", "EXECUTE": "run"}
_ORDER = tuple(_LETTERS.values())

_RELATIONS = """
select
    c.oid, c.relname, c.relkind::text,
    exists (
        select from pg_trigger as t
        where t.tgrelid = c.oid and t.tgname = 'refuse_change' and t.tgenabled = 'O' and (t.tgtype & 27) = 27
    )
    and exists (
        select from pg_trigger as t
        where t.tgrelid = c.oid and t.tgname = 'refuse_truncate' and t.tgenabled = 'O' and (t.tgtype & 34) = 34
    ) as is_guarded
from pg_class as c
where c.relnamespace = to_regnamespace(%s) and c.relkind in ('r', 'p', 'v', 'S') and not c.relispartition
order by c.relname
"""
_TABLE_RIGHTS = """
select c.oid, coalesce(a.grantee::regrole::text, 'everybody'), a.privilege_type, a.is_grantable
from pg_class as c cross join aclexplode(c.relacl) as a
where c.relnamespace = to_regnamespace(%s) and a.grantee <> c.relowner
"""
_COLUMN_RIGHTS = """
select c.oid, a.grantee::regrole::text, a.privilege_type, array_agg(n.attname::text order by n.attnum),
    (select array_agg(o.attname::text order by o.attnum) from pg_attribute as o
     where o.attrelid = c.oid and o.attnum > 0 and not o.attisdropped)
from pg_class as c
join pg_attribute as n on n.attrelid = c.oid
cross join aclexplode(n.attacl) as a
where c.relnamespace = to_regnamespace(%s) and a.grantee <> c.relowner
group by 1, 2, 3
"""
_FUNCTIONS = """
select p.oid::regprocedure::text, p.prosecdef,
    array(
        select case when a.grantee = 0 then 'everybody' else a.grantee::regrole::text end
        from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee <> p.proowner
    )
from pg_proc as p
where p.pronamespace = to_regnamespace(%s) and p.prorettype <> 'trigger'::regtype
order by 1
"""


def rights_of(connection: psycopg.Connection, schema: str) -> str:
    """Return the tables of rights in a schema: relations, then functions that can be called."""
    cells: dict[int, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for relation, role, right, is_grantable in connection.execute(_TABLE_RIGHTS, [schema]).fetchall():
        word = _LETTERS.get(right, right.lower()) + (" and grant" if is_grantable else "")
        cells[relation][role][word] = ""
    for relation, role, right, columns, every in connection.execute(_COLUMN_RIGHTS, [schema]).fetchall():
        others = [column for column in every if column not in columns]
        listed = f"all but {', '.join(others)}" if len(others) < len(columns) else ", ".join(columns)
        cells[relation][role].setdefault(_LETTERS.get(right, right.lower()), f" ({listed})")
    shown = [role.removeprefix("tallystick_") for role in SHOWN]
    lines = [f"| {' | '.join(['', 'rows', *shown])} |", "| --- " * (len(shown) + 2) + "|"]
    for relation, name, kind, is_guarded in connection.execute(_RELATIONS, [schema]).fetchall():
        if kind == "S" and not cells[relation]:
            continue
        rows = {"v": "a view", "S": "a sequence"}.get(kind, "are only added" if is_guarded else "change")
        unknown = set(cells[relation]) - set(SHOWN)
        assert not unknown, f"{schema}.{name} is open to {unknown}"
        lines.append(f"| {' | '.join([f'`{name}`', rows, *(_cell(cells[relation][role]) for role in SHOWN)])} |")
    lines += ["", "| function | with whose rights | who may run it |", "| --- | --- | --- |"]
    for name, is_definer, roles in connection.execute(_FUNCTIONS, [schema]).fetchall():
        who = ", ".join(sorted(role.removeprefix("tallystick_") for role in roles)) or "the owner"
        lines.append(f"| `{name.removeprefix(f'{schema}.')}` | {'the owner' if is_definer else 'the caller'} | {who} |")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _cell(found: dict[str, str]) -> str:
    words = sorted(
        found,
        key=lambda word: (
            _ORDER.index(word.removesuffix(" and grant")) if word.removesuffix(" and grant") in _ORDER else 99
        ),
    )
    return ", ".join(f"{word}{found[word]}" for word in words)
