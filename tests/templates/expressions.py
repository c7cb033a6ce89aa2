# SPDX-License-Identifier: Apache-2.0
"""Expressions whose values are compared with jinja2's."""

EXPRESSIONS = r"""
1 + 2 * 3 ** 2
-2 ** 2
2 ** -1
2 ** 3 ** 2
7 // -2
-7 % 3
7.5 % -2
1 / 3
10 / 5
1e16
1e15
123456789.123
0.1 + 0.2
1_000
0x1F + 0o17 + 0b11
2 ** 100
10 ** 30 / 7
'a' 'b' "c"
'a' + 'b' * 3
[1] + [2] * 2
(1, 2) + (3,)
'\x41\u00e9\n\t\\' | tojson
1 < 2 < 3
1 < 3 < 2
1 == 1.0 == true
not 1 == 2
not none or false
1 if false
(1 if false) is undefined
none ~ true ~ 1.0
1 in [1.0]
'a' in {'a': 1}
{'a': 1, 'a': 2}
{1: 'a', true: 'b', 1.0: 'c'}
[1, 2, 3][1:]
'hello'[1:4:2]
'hello'[-3:]
'hello'[10]
[1, 2][5] is undefined
(1, 2, 3)[::-1]
range(10)[2:5] | list
range(5, 0, -2) | list
range(0)
range(3)
range(100001)
range(1, 2, 0)
loop is defined
missing.x
missing.x.y
missing is iterable
none_value is iterable
tools is iterable
none | length
missing | length
missing | list
missing + 1
missing ~ 'x'
missing == none
missing == missing
missing.items()
missing()
missing[0]
mapping.zz is none
mapping.items
mapping.items()
mapping.keys() | list
mapping.values() | sum
mapping.get('zz')
mapping.get('zz', 3)
mapping.pop('a')
mapping.update({'c': 3})
mapping | dictsort
mapping | dictsort(by='value', reverse=true)
mapping | dictsort(false, 'other')
mapping | tojson(sort_keys=true)
tools | tojson
tools | tojson(indent=4)
tools | tojson(separators=(',', ':'))
messages | tojson(indent=1, sort_keys=true)
'é<>&\'"' | tojson
'é' | tojson(ensure_ascii=true)
'😀' | tojson(true)
tojson
text | trim
text.strip()
text.lstrip() | length
text.rstrip() | length
text.split()
text.split(' ', 2)
text.split(none, 2)
text.rsplit(none, 2)
text.rsplit(' ', 1)
text.rsplit(maxsplit=1)
text.splitlines()
text.splitlines(true)
text.partition('quick')
text.rpartition('zz')
text.partition('')
text.replace('q', 'Q')
text.replace('', '-')
text.replace('o', '0', 1)
text | replace('o', '0', 1)
text.find('fox')
text.find('o', 14)
text.rfind('n')
text.index('zz')
text.count('n')
text.count('')
text.startswith(('a', '  The'))
text.endswith('end ')
text.startswith('quick', 6)
text.title()
text | title
text.upper()
text.casefold()
text.center(60, '*')
text.expandtabs(4)
text | wordcount
text | truncate(12)
text | truncate(12, true)
text | truncate(12, end='..')
text | truncate(2)
text | truncate(60, leeway=0)
text | indent(3)
text | indent('> ')
text | indent(width=2, first=true)
text | indent(2, blank=true)
text | urlencode
{'a b': 'c&d', 'e': [1]} | urlencode
'abc'.removeprefix('ab')
'abc'.removesuffix('bc')
'abc'.ljust(5, '.') ~ 'abc'.rjust(5)
'7'.zfill(3) ~ '-7'.zfill(4)
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.rsplit(',', 1)
'abc'.split('')
'a-b_c'.translate({45: '+', 95: none})
'abc'.maketrans('ab', 'xy')
'-'.join(['a', 'b'])
'-'.join([1])
'-'.join('abc')
'abc'.isalpha() and '12'.isdigit() and 'a1'.isalnum() and ' '.isspace()
'½'.isnumeric() ~ '²'.isdigit() ~ '²'.isdecimal()
'Ab Cd'.istitle() ~ 'ab'.islower() ~ 'AB'.isupper() ~ 'a b'.isidentifier()
'ßΣ'.lower() ~ 'ΑΣ'.lower() ~ 'ß'.upper() ~ 'ŉ'.capitalize()
"they're bill's".title()
'aBc'.swapcase()
'abc'.encode('utf-8')
'abc'.format()
'{} {}'.format(1, 'a')
'{0} {1} {0}'.format(1, 2)
'{a} {b!r}'.format(a=1, b='x')
'{:,} {:+d} {:x} {:08.3f} {:%} {:e}'.format(1234567, 5, 255, 3.14159, 0.5, 12345.678)
'{:<6}|{:^6}|{:*>6}'.format('a', 'b', 'c')
'{0[k]}{0[l][0]}'.format({'k': 1, 'l': [2]})
'{.__class__}'.format('')
'{0.__class__.__mro__}'.format(1)
'{'.format()
'{}'.format()
'%s %d %.2f %x %r %%' % ('a', 3, 2.5, 255, 'q')
'%(a)s %(b)05d' % {'a': 1, 'b': 2}
'%s' % (1, 2)
'%s %s' % 1
'%-5s|%5s|%+d|% d|%e|%g' % ('a', 'b', 1, 2, 3.5, 0.00001)
'%c%c' % (65, 'b')
'%s' | format('x')
'%(x)s' | format(x=1)
'x' | int
'12abc' | int
'1e3' | int
'1.9' | int
'0x1A' | int(base=16)
'0b11' | int(0, 2)
' 1_000 ' | int
'inf' | int(3)
'nan' | float
'1e400' | float
1e400 | int
2.5 | round
3.5 | round
2.675 | round(2)
1234 | round(-2)
2.1 | round(0, 'ceil')
2.15 | round(1, 'floor')
5 | round(1, 'other')
-3 | abs
1000 | filesizeformat
1 | filesizeformat
1536 | filesizeformat(true)
123456789 | filesizeformat
words | sort
words | sort(case_sensitive=true)
words | sort(true)
words | unique | list
words | unique(true) | list
words | min
words | max(case_sensitive=true)
words | map('upper') | join(',')
words | map('replace', 'a', 'o') | list
words | map('nosuch') | list
words | map | list
words | select('in', ['delta']) | list
words | reject('equalto', 'delta') | list
words | select('nosuch') | list
words | first | upper
words | batch(3, '-') | map('join', ' ') | list
words | slice(3, '-') | list
words | join(', ')
words | join(' ', attribute=0)
words | random is string
words | map('length') | sum
words | groupby(0)
people | map(attribute='name') | join(',')
people | map(attribute='zz', default='-') | list
people | map(attribute='a.b') | list
people | map(attribute='a.b', default=9) | list
people | selectattr('a') | map(attribute='name') | list
people | selectattr('age', 'gt', 5) | map(attribute='name') | list
people | selectattr('name', 'equalto', 'Bo') | list | length
people | rejectattr('age', 'odd') | list
people | rejectattr('a', 'defined') | list
people | sort(attribute='age') | map(attribute='age') | list
people | sort(attribute='name,age') | map(attribute='age') | list
people | groupby('name') | map(attribute='grouper') | list
people | groupby('name') | map('last') | map('length') | list
people | groupby('a.b', default=5) | list | length
people | sum(attribute='age')
people | sum('age', 0.5)
people | max(attribute='age')
people | unique(attribute='name') | list | length
[[1, 2], [3]] | sum(start=[])
['a'] | sum
[3, 1] | sort | reverse | list
[1, 'a'] | sort
[none, 1] | max
[] | first
[] | max
[] | last is undefined
'abc' | first ~ 'abc' | last
'abc' | list
'abc' | reverse
'a<b' | e
'a<b' | e | e
'a<b' | forceescape
('<' | safe) ~ '<'
('<' | safe) + '<'
('<%s>' | safe) % '<'
('<{}>' | safe).format('<')
'<b>x</b> &amp; y' | striptags
{'class': 'a"b', 'x': none} | xmlattr
{'a b': 1} | xmlattr
dict(a=1, b=2)
dict([('a', 1)], b=2)
dict({'a': 1}) == {'a': 1}
namespace(a=1).a
namespace({'a': 1}, b=2).b
cycler('a', 'b').next()
cycler().next()
joiner(', ')() ~ 'x'
lipsum is defined
raise_exception is callable
strftime_now('%Y') | length
strftime_now('')
strftime_now()
self is defined
''.__class__
''.__class__.__mro__
[].__len__()
(1).real
(1).bit_length()
(2.0).is_integer()
(0.5).as_integer_ratio()
messages[0].__init__
messages.append(1)
messages[0].setdefault('x', 1)
messages | attr('__class__')
mapping['items']
mapping.b
mapping | attr('b') is defined
messages[0]['role'] == messages[0].role
messages[1].content[0].text
messages[-1].tool_calls[0].function.arguments | tojson
messages[-1]['content'] is none
messages | map(attribute='role') | list
messages | selectattr('role', 'equalto', 'user') | list | length
messages | length > 2 and messages[0].role == 'system'
x is defined and x.y
[1, 2,]
(1)
()
{}
1, 2
[1, [2, {'a': (3,)}]]
none
None ~ True ~ False
true and 1
'' or 'x'
1 is odd and 2 is even
4 is divisibleby 2
4 is divisibleby(3)
'x' is in 'xyz'
1 is in [1]
3 is not none
1 is eq(1) is true
'upper' is filter and 'odd' is test
'nosuch' is filter
1 is nosuch
1 | nosuch
1 is number is true
3 is sameas 3
[] is sameas []
1 | upper
true | upper
'a'.upper
'a'.nosuch
'a'.nosuch()
[1].nosuch
(1).nosuch
f(1)
1()
'%.3s' % 'abcdef'
'%*d' % (5, 3)
1 // 0
1 % 0
1.0 / 0
2 ** 0.5
(-8) ** (1/3) is defined
1 < 'a'
[] < {}
none < 1
'a' * -1
'a' + 1
1 + '1'
[1] + (2,)
{'a': 1} + {'b': 2}
+true
-'a'
true + true
1.0 * 3
3 - -3
100000000000000000000 + 1
9223372036854775807 + 1
-9223372036854775808 - 1
1 == '1'
'a' < 'b' < 'c'
[1, 2] < [1, 3]
{'a': 1} == {'a': 1.0}
range(3) == range(0, 3)
1.5 is float ~ 1 is integer ~ true is integer
'x' ~ [1, 'a'] ~ {'k': none}
a.b.c
text | nosuch if false else 'fine'
'"' ~ "'" ~ '"\''
["'", '"', "'\"", '\n', '\x00', 'é', '\u200b', '\xa0']
words[1:] | last
words[-2:][0]
words[none:2]
words[1.5]
words['1']
words.1
people.0.name
'a.b'.split('.')[1]
"%s" % none
"%d" % '1'
'a' is string and 1 is not string
(messages | last).role
(1, 'x') | map('length') is integer
(5)[1:] is defined
(-3) ** 2.5
mapping | pprint
'a b.example.org' | urlize
'some words' | wordwrap(4)
lipsum(1) is string
'\N{BULLET}'
℘ is undefined
a·b is undefined
· is undefined
²x is undefined
words | sort(reverse='yes')
words | sort(reverse=none)
words | sort(reverse=2)
mapping | dictsort(reverse='yes')
'a'.splitlines('yes')
'a\nb'.splitlines(1)
[] | map(5) | list
[] | map | list
missing | selectattr | list
[1] | map(5) | list
'x' | tojson(indent=[1])
1 | tojson(indent=[1])
'{:>{}}'.format('x', 5)
'{:>{}}|'.format('x', '')
'{:{}{}}|'.format('x', '<', 4)
'{:{:{}}}'.format('x', 5, 1)
'%5%' % 1
'%% %-3d%%' % 1
'{:z.0f}'.format(-0.4)
'{:.0f}'.format(-0.4)
'{:z}'.format(1)
2.5 | round(none)
3.5 | round(none)
7 | round(none)
'x'.center(2 ** 70)
'x'.center(-(2 ** 70))
'x' | truncate(2 ** 70)
'x' | indent(-(2 ** 70))
'axa' | replace('a', 'b', 2 ** 70)
[1] * -(2 ** 70)
[1].index(1, -(2 ** 70))
('<b>' | e).replace('l', 5)
-(2 ** 65) | filesizeformat
-1e300 * 1e300 | filesizeformat
[[1, 'a' * 40, none], {'b': 'x y ' * 30, 'a': ('z' * 90,)}] | pprint
('words of a text that is longer than a line of it, ' * 3) | pprint
{'k': 'words of a text that is longer\n than a line, ' * 3} | pprint
('q' * 90 + '\n') * 2 | pprint
{1: 'a' * 50, 'b': 'c' * 50, none: ''} | pprint
'<b>' | e | pprint
'' | pprint
text | wordwrap(10)
'well-known e-mail a--b --opt x-y' * 3 | wordwrap(8)
'well-known e-mail a--b --opt x-y' * 3 | wordwrap(8, break_on_hyphens=false)
'supercalifragilistic words' | wordwrap(6, false, '|')
'a b' | wordwrap(0)
'' | wordwrap(0)
5 | wordwrap
mapping.keys() - ['a']
mapping.keys() >= mapping.keys()
dict[1:] is defined
'abc'.translate('x')
""".strip().splitlines()
