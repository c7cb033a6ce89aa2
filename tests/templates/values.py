# SPDX-License-Identifier: Apache-2.0
"""Templates whose outcomes are compared with jinja2's. `v` is a value of each kind."""

VARIABLES = {
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": [{"type": "text", "text": "Hi <b>"}]},
                 {"role": "assistant", "content": None, "tool_calls": [
                     {"function": {"name": "f", "arguments": {"a": 1, "b": [True, None]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"x": {"type": ["string", "null"]}}, "required": []}}}],
    "none_value": None, "words": ["delta", "Alpha", "charlie", "alpha"],
    "people": [{"name": "Bo", "age": 7, "a": {"b": 1}}, {"name": "al", "age": 9, "a": {"b": 0}},
               {"name": "Bo", "age": 3}],
    "text": "  The quick\tbrown fox\njumps, über-straße!  \n\n end ", "mapping": {"b": 2, "a": 1},
}

KINDS = {
    "none": "none", "true": "true", "false": "false", "zero": "0", "int": "42", "negative": "-7",
    "big": "123456789012345678901234567890", "float": "2.5", "whole float": "3.0",
    "small float": "1e-7", "large float": "1e20", "empty string": "''", "string": "'Hello World'",
    "digits": "' 17 '", "accents": "'Äpfel & ÉCLAIR ǆ ß'", "lines": "'a\\n\\n  b\\r\\nc\\n'",
    "quotes": "\"it's <b>\\\"x\\\"</b>\"", "markup": "('<i>x</i>' | safe)", "empty list": "[]",
    "list": "[3, 1, 2]", "strings": "['b', 'A', 'a', 'C']", "mixed": "[1, 'a', none, 2.0, true]",
    "nested": "[[1, 2], {'k': (1,)}, []]", "tuple": "(1, 'x')", "one": "(1,)", "empty dict": "{}",
    "dict": "{'b': 1, 'A': [2], 'items': 3}", "odd keys": "{1: 'i', none: 'n', 2.5: 'f'}",
    "range": "range(2, 9, 3)", "keys": "mapping.keys()", "items": "mapping.items()",
    "generator": "(words | map('upper'))", "undefined": "missing", "missing member": "mapping.zz",
    "namespace": "namespace(a=1)", "message": "messages[2]",
}

# Templates that are rendered once for each kind of value.
OF_VALUE = """
{{ v is defined }}|{{ v is undefined }}|{{ v is none }}|{{ v is boolean }}|{{ v is true }}
{{ v is integer }}|{{ v is float }}|{{ v is number }}|{{ v is string }}|{{ v is mapping }}
{{ v is iterable }}
{{ v is sequence }}
{{ v is callable }}|{{ v is escaped }}|{{ v is sameas none }}|{{ v is false }}
{{ v is lower }}
{{ v is upper }}
{{ v is odd }}
{{ v is even }}
{{ v is divisibleby 3 }}
{{ v is in [1, 'a', none, 42] }}
{{ v is eq 42 }}|{{ v == 42 }}|{{ v != none }}|{{ v == '' }}|{{ v == [] }}
{{ v > 2 }}
{{ v <= 'b' }}
{{ v is gt 1 }}
{{ 1 in v }}
{{ 'a' in v }}
{{ 'b' not in v }}
{{ v in v }}
{{ v and 'yes' }}|{{ not v }}
{{ v or 'no' }}
{{ 'then' if v else 'else' }}
{{ v | length }}
{{ v | count }}
{{ v | list }}
{{ v | first }}
{{ v | last }}
{{ v | string }}
{{ v | upper }}
{{ v | lower }}
{{ v | title }}
{{ v | capitalize }}
{{ v | trim }}
{{ v | trim('ab ') }}
{{ v | int }}
{{ v | int(5) }}
{{ v | int(default=none, base=16) }}
{{ v | float }}
{{ v | float('x') }}
{{ v | abs }}
{{ v | round }}
{{ v | round(1, 'floor') }}
{{ v | round(-1) }}
{{ v | default('d') }}
{{ v | d('d', true) }}
{{ v | default }}
{{ v | join('-') }}
{{ v | join }}
{{ v | sort }}
{{ v | sort(reverse=true) }}
{{ v | sum }}
{{ v | min }}
{{ v | max }}
{{ v | unique | list }}
{{ v | reverse | list }}
{{ v | map('string') | list }}
{{ v | map(attribute='k') | list }}
{{ v | select | list }}
{{ v | reject('string') | list }}
{{ v | selectattr('k') | list }}
{{ v | batch(2) | list }}
{{ v | batch(2, 'x') | list }}
{{ v | slice(2) | list }}
{{ v | dictsort }}
{{ v | items | list }}
{{ v | tojson }}
{{ v | tojson(indent=2) }}
{{ v | tojson(ensure_ascii=true, separators=(',', ':')) }}
{{ v | escape }}
{{ v | forceescape }}
{{ v | safe }}
{{ v | striptags }}
{{ v | replace('a', 'b') }}
{{ v | replace('l', 'L', 1) }}
{{ v | indent }}
{{ v | indent(2, true, true) }}
{{ v | truncate(5, true, '', 0) }}
{{ v | center(20) }}
{{ v | wordcount }}
{{ v | urlencode }}
{{ v | xmlattr }}
{{ v | filesizeformat }}
{{ v | format(1) }}
{{ v | attr('k') is defined }}
{{ v | groupby(0) }}
{{ v[0] }}
{{ v[-1] }}
{{ v['k'] }}
{{ v.k }}
{{ v.k.l }}
{{ v[1:] }}
{{ v[::-1] }}
{{ v[:-1] }}
{{ v + v }}
{{ v + 1 }}
{{ v - 1 }}
{{ v * 2 }}
{{ v / 2 }}
{{ v // 2 }}
{{ v % 2 }}
{{ v ** 2 }}
{{ -v }}
{{ v ~ '' ~ v }}
{{ '%s' % v }}
{{ '%r|%s' % (v, v) }}
{{ '%5.1f' % v }}
{{ '%d' % v }}
{{ '{}|{!r}'.format(v, v) }}
{{ '{:>12}'.format(v) }}
{{ v.items() | list }}
{{ v.get('b') }}
{{ v.strip() }}
{{ v.split() }}
{{ v.split('l') }}
{{ v.splitlines() }}
{{ v.upper() }}|{{ v.lower() }}|{{ v.title() }}|{{ v.capitalize() }}|{{ v.swapcase() }}
{{ v.startswith('H') }}
{{ v.copy() }}
{{ v.append(1) }}
{{ v.__class__ }}
{{ v.index('a') }}
{{ v.count('a') }}
{{ v() }}
{{ range(v) | list }}
{{ dict(v) }}
{{ [v, v] }}|{{ (v,) }}|{{ {'k': v} }}
{{ {v: 1} }}
{{ v }}
{%- for x in v %}{{ loop.index }}{{ loop.last }}:{{ x }};{% else %}none{% endfor %}
{%- for a, b in v %}{{ a }}={{ b }};{% endfor %}
{%- for x in v if x %}{{ x }}{{ loop.length }};{% endfor %}
{%- if v %}1{% elif v is defined %}2{% else %}3{% endif %}
{%- set a, b = v %}{{ a }}{{ b }}
{%- set v.x = 1 %}{{ v.x }}
{%- macro m(a, b=v) %}{{ a }}{{ b }}{% endmacro %}{{ m(v) }}{{ m(1, b=2) }}
{%- with w = v %}{{ w }}{% endwith %}
{%- filter upper %}{{ v }}{% endfilter %}
{%- autoescape true %}{{ v }}{{ '<' ~ v }}{{ [v] | join('<') }}{% endautoescape %}
{{ raise_exception(v) }}
{%- set ns = namespace(x=v) %}{% for i in [1] %}{% set ns.x = i %}{% endfor %}{{ ns.x }}
{%- include v %}
{{ m(*v) }}{% macro m() %}{{ varargs }}{% endmacro %}
{{ dict(**v) }}
""".strip().splitlines()
