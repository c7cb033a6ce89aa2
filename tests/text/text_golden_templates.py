# SPDX-License-Identifier: Apache-2.0
"""Chat templates with the features of real models' templates, and conversations for them."""

CHAT = [
    {"role": "system", "content": "  Be brief.  "},
    {"role": "user", "content": "Hello <b>you</b> & 'me'"},
    {"role": "assistant", "content": "<think>hm\n</think>\n\nHi! 😀"},
    {"role": "user", "content": "a\nb"},
]

TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "It's <hot> & \"é\"",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
        },
    },
}]

_TURNS = """{{ bos_token }}{% for message in messages %}
    {% if loop.first and message.role == 'system' %}
<<{{ message['content'] | trim }}>>
    {% else %}
        {{- '<|' + message.role + '|>' + message.content.strip() + '<|end|>' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{%- endif %}
"""

_NAMESPACE = """{%- set ns = namespace(last=-1, system='') -%}
{%- for m in messages -%}
    {%- if m['role'] == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
    {%- if m.role == 'system' -%}{%- set ns.system = m.content -%}{%- continue -%}{%- endif -%}
    {%- if loop.index0 > 10 -%}{%- break -%}{%- endif -%}
{%- endfor -%}
last={{ ns.last }} system={{ ns.system|trim|upper }}
reversed={% for m in messages[::-1] %}{{ m.role[0] }}{{ ',' if not loop.last }}{% endfor %}
rest={{ messages[1:] | length }} {{ messages | map(attribute='role') | join('/') }}
"""

_METHODS = """{% for m in messages %}
{% set content = m.content.split('</think>')[-1].lstrip('\\n') if '</think>' in m.content else \
m.content %}
{{ loop.index }} {{ content.strip().replace('<b>', '[').upper() }} {{ content.startswith('H') }} \
{{ content.endswith('b') -}}
{% for key, value in m.items() %} {{ key }}={{ value | length }}{% endfor %}

{% endfor %}
{{ 'title case here'.title() }}|{{ ' x '.rstrip() }}|{{ 'a,b,c'.split(',') }}|{{ 'a-b'.split('-', \
1)[1] }}|{{ 'abc'.find('c') }}
"""

_TOOLS = """{%- if tools %}
{{- '# Tools\\n' }}
{%- for tool in tools %}
{{- tool | tojson }}
{{ tool.function | tojson(indent=2) }}
{{ tool.function.parameters.properties.keys() | list | tojson }}
{%- endfor %}
{%- endif %}
{{ {'z': 1, 'a': [true, none, 1.5, 1e20, 'ü\\t']} | tojson }} {{ {'z': 1, 'a': 2} | \
tojson(sort_keys=true) }}
{{ 'ü' | tojson(ensure_ascii=true) }} {{ [] | tojson }} {{ {} | tojson(indent=4) }}
{{ messages[0] | tojson(separators=(',', ':')) }}
"""

_VALUES = """{{ true }} {{ false }} {{ none }} {{ 1.0 }} {{ 10 / 4 }} {{ 7 // 2 }} {{ 7 % 4 }}
{{ [1, 'a', "it's", none] }} {{ {'k': true} }}
[{{ missing }}]
{{ missing is defined }} {{ messages is iterable }} {{ messages[0] is mapping }}
{{ messages[0].content is string }} {{ 3 is odd }}
{{ 'x' ~ 1 ~ '-' ~ 2.5 }} {{ '%s-%d' | format('a', 3) }}
{{ 'a' if missing else 'b' }} {{ missing | default('none given') }} {{ (1, 2) }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}
{{ range(3) | list }} {{ [3, 1, 2] | sort }} {{ 'ab' * 2 }} {{ 'a' in 'cat' }} {{ not false and 1 \
< 2 }} {{ [1, 2] + [3] }}
{{ date_string | default('no date') }} {{ 'abc'[1:] }} {{ 'abc'[-1] }}
{{ messages[-1]['content'] | replace('\\n', ' ') | capitalize }}
"""

_MACRO = """{% macro turn(role, text, end=true) %}
<{{ role }}>{{ text }}{% if end %}</{{ role }}>{% endif %}
{% endmacro %}
{%- for m in messages %}
{{ turn(m.role, m.content | trim, end=not loop.last) }}
{%- endfor -%}
{# a comment #}
{%- set text %}captured {{ eos_token }}{% endset %}
[{{ text }}] {{- '\\n' }}   tail   """

_GENERATION = """{% for m in messages %}
{%- if m.role == 'assistant' -%}
{% generation %}{{ m.content + eos_token }}{% endgeneration %}
{%- else -%}
{{ m.content }}
{%- endif %}
{% endfor %}"""

_STRFTIME = """{{ strftime_now('%Y-%m-%d') | length }} {{ strftime_now('%%') }}\
{% for m in messages %}{% if loop.previtem is defined %}.{% endif %}{% endfor %}"""

TEMPLATE_CASES = [
    {"name": "turns", "template": _TURNS, "messages": CHAT},
    {
        "name": "turns with generation prompt", "template": _TURNS, "messages": CHAT[1:],
        "add_generation_prompt": True
    },
    {"name": "namespace and loop controls", "template": _NAMESPACE, "messages": CHAT},
    {"name": "python methods", "template": _METHODS, "messages": CHAT},
    {"name": "tools as JSON", "template": _TOOLS, "messages": CHAT[:1], "kwargs": {"tools": TOOLS}},
    {"name": "no tools", "template": _TOOLS, "messages": CHAT[:1]},
    {"name": "values as Python prints them", "template": _VALUES, "messages": CHAT},
    {
        "name": "variables from the request", "template": _VALUES, "messages": CHAT,
        "kwargs": {"date_string": "today"}
    },
    {"name": "macro, set block, comment", "template": _MACRO, "messages": CHAT},
    {"name": "generation tags", "template": _GENERATION, "messages": CHAT},
    {"name": "strftime_now", "template": _STRFTIME, "messages": CHAT},
    {
        "name": "extra keys in messages",
        "template": "{{ messages[0].name }} {{ messages[0]['x']['y'][1] }} {{ messages[0].x }}",
        "messages": [{"role": "user", "content": "c", "name": "Ann", "x": {"y": [1, "two"]}}]
    },
]
