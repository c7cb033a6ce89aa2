# SPDX-License-Identifier: Apache-2.0
"""Whole templates that are compared with jinja2's rendering; \\n is a new line."""

STATEMENTS = r"""
{% for m in messages %}{{ loop.index0 }}{{ m.role }}{% if not loop.last %},{% endif %}{% endfor %}
{% for w in words %}{{ loop.cycle('x', 'y') }}{{ loop.first }}{{ loop.revindex }}{% endfor %}
{% for w in words %}{{ loop.previtem }}<{{ w }}>{{ loop.nextitem }}{% endfor %}
{% for w in words %}{{ loop.changed(w | lower) }}{{ loop.depth }}{% endfor %}
{% for k, v in mapping.items() %}{{ k }}{{ v }}{% endfor %}
{% for k in mapping %}{{ k }}{% endfor %}
{% for a in [1,2] %}{% for b in [3,4] %}{{ loop.depth }}{{ a }}{{ b }}{% endfor %}{% endfor %}
{% for w in words if w != 'Alpha' %}{{ loop.index }}{{ w }}{% endfor %}
{% for w in words %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ w }}{% endfor %}
{% for w in words %}{% if loop.index == 2 %}{% break %}{% endif %}{{ w }}{% endfor %}
{% break %}
{% for x in [] %}{{ x }}{% else %}empty{% endfor %}
{% for x in [1, [2]] recursive %}{{ x if x is number else loop(x) }}{{ loop.depth }}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}
{% if false %}{% set y = 2 %}{% endif %}{{ y is defined }}
{% set n = namespace(n=0) %}{% for w in words %}{% set n.n = n.n + 1 %}{% endfor %}{{ n.n }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a = 1, 2 %}{{ a }}
{% set mapping.x = 1 %}{{ mapping }}
{% set x %}  block {{ 1 + 1 }} {% endset %}[{{ x }}]
{% set x | upper | trim %} abc {% endset %}[{{ x }}]
{% macro m(a, b='d', *args) %}{% endmacro %}
{% macro m(a, b='d') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, c=4) }}
{% macro m(a, b='d') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m() }}
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}{{ m(b=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, z=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m }}
{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{% endcall %}
{% macro m() %}[{{ caller('x') }}]{% endmacro %}{% call(a) m() %}{{ a }}{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}
{% for x in [1] %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}
{% filter upper %}abc{{ 'd' }}{% endfilter %}
{% filter replace('a', 'b') | upper %}banana{% endfilter %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z is defined }}
{% raw %}{{ x }}{% if %}{% endraw %}|{{ 1 }}
{%- raw -%} a {{ b }} {%- endraw -%} c
{# comment #}a{#- b -#} c
{# {{ no }} {% if %} #}x
{% generation %}{{ 1 }}{% endgeneration %}
{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q is defined }}
{% for m in messages %}{% generation %}{{ m.role }}{{ loop.index }}{% endgeneration %}{% endfor %}
{% block a %}in {{ mapping.a }}{% endblock %}{{ self.a() }}
{% autoescape true %}{{ '<' }}{{ '<' | safe }}{{ '<' ~ '>' }}{% endautoescape %}{{ '<' }}
{% print 1, 2 %}
{% do 1 %}
{% include 'x' %}
{% import 'x' as y %}
{% extends 'x' %}
{% if 1 %}a{% endfor %}
{% if %}
{% for x in %}{% endfor %}
{% endif %}
{{ 'a'
{% set x = %}
{{ 1 | }}
{{ (1 }}
{{ [1, 2 }}
{{ {'a' 1} }}
{{ 'a }}
{{ $ }}
{{ a b }}
{{ 1 2 }}
{# open
{% raw %} open
{% unknown %}
{% if x %}a{% elif y %}b{% else %}c{% endif %}
a{% if true %}\nb\n{% endif %}\nc\n
a\n  {% if true %}  \n  b\n  {% endif %}\nc\n\n
  {%+ if true %}x{% endif +%}\ny
a \n {%- if true -%} \n b \n {%- endif -%} \n c
a \n {{- 1 -}} \n b
  {{ 1 }}\n  {{ 2 }}\n\n
x\n\t{# c #}\ny\n
x {# c #}\ny
{% for i in [1, 2] %}\n  - {{ i }}\n{% endfor %}\nend\n
{% for i in [1, 2] -%}\n  - {{ i }}\n{%- endfor %}\nend
{%- for i in [1, 2] %}\n\n{{ i }}\n{%- endfor %}
\n\n{% if true %}\n\nx{% endif %}
a\r\n{% if true %}\r\nb{% endif %}\rc
{{ '\n' }}{{ "a\\nb" }}
{{ 'a\nb' }}
{% set x = 'a' -%}\n  b
{% if true %}{# c #}\n{% endif %}x
{%if true%}a{%endif%}{{1}}
{% if\n true\n %}a{% endif %}
{{\n 1\n }}
}} %} #} { % {
{{ {'a': {'b': 1}}.a.b }}{{ {} }}
""".strip().splitlines()
STATEMENTS = [text.replace(r"\r", "\r").replace(r"\n", "\n").replace(r"\t", "\t")
              for text in STATEMENTS]
