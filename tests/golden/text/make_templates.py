"""Writes random_templates.jsonl: random templates, and their results in jinja2 with the settings of transformers.

    python -W ignore make_templates.py SEED COUNT > random_templates.jsonl      (transformers 5.23, jinja2 3.1.6)

First row: the variables. Then {"template", "text", "spans"} or {"template", "error": true}. Not covered, because they
show how jinja2 is built rather than what templates mean: objects that print their address, Markup in lists, filter blocks
without text, constant lists folded into tuples, slices of values that are sometimes constant, and integers of more than 127
bits.
"""
import copy
import json
import random
import re
import sys


from transformers.utils.chat_template_utils import _compile_jinja_template
random.seed(int(sys.argv[1])); N=int(sys.argv[2])
KW={'n':3,'f':2.5,'neg':-7,'s':'Hello World','u':'é😀 Straße ΑΣ','e':'','b':True,'z':None,'l':[3,1,2],'ls':['b','A','c','a'],'d':{'a':1,'b':{'c':[1,2]},'k e':None},'ld':[{'r':'x','v':2},{'r':'Y','v':1},{'r':'x','v':3}],'ml':'a\n b\n\nc\n','ws':'  x \t','big':12345678901234567890,'mixed':[1,'a',None,2.0,True,[1],{'q':1}]}
MSG=[{'role':'system','content':' You are. '},{'role':'user','content':'Hi <b> "q" \'s'},{'role':'assistant','content':None,'tool_calls':[{'function':{'name':'f','arguments':{'x':1.0,'y':[True,None]}}}]}]
names=list(KW)+['messages','tools','missing','add_generation_prompt','x']
FIL="abs attr('a')|batch(2)|capitalize|center(9)|count|d('D')|default('D',true)|dictsort|e|escape|filesizeformat|first|float|groupby('r')|indent|indent(2,true)|int|int(5)|items|join|join(', ')|join('-',attribute='r')|last|length|list|lower|map('upper')|map(attribute='r')|map(attribute='q',default='Q')|max|min|reject|reject('none')|rejectattr('v','gt',1)|replace('a','b')|replace('l','L',1)|reverse|round|round(1)|round(-1)|round(2,'floor')|safe|select|select('string')|select('number')|selectattr('r','equalto','x')|selectattr('v')|slice(2)|sort|sort(reverse=true)|sort(attribute='v')|sort(case_sensitive=true)|string|striptags|sum|sum(attribute='v')|title|tojson|tojson(indent=2)|tojson(sort_keys=true)|tojson(separators=(',',':'))|tojson(ensure_ascii=true)|trim|trim('H')|truncate(5)|truncate(8,true,'…',0)|unique|upper|urlencode|wordcount|format(1)|batch(2,'-')|attr('upper')|map('default','x')|first|last|xyz".split('|')
FIL=[]
s="abs;attr('a');batch(2);capitalize;center(9);count;d('D');default('D',true);dictsort;e;filesizeformat;first;float;groupby('r');indent;indent(2,true);indent(width='> ',blank=true);int;int(5);items;join;join(', ');join('-',attribute='r');last;length;list;lower;map('upper');map(attribute='r');map(attribute='q',default='Q');max;min;reject;reject('none');rejectattr('v','gt',1);replace('a','b');replace('l','L',1);replace('','-');reverse;round;round(1);round(-1);round(2,'floor');safe;select;select('string');select('number');selectattr('r','equalto','x');selectattr('v');slice(2);sort;sort(reverse=true);sort(attribute='v');sort(attribute='r,v');sort(case_sensitive=true);string;striptags;sum;sum(attribute='v');title;tojson;tojson(indent=2);tojson(sort_keys=true);tojson(separators=(',',':'));tojson(ensure_ascii=true);trim;trim('H');truncate(5);truncate(8,true,'…',0);unique;unique(true);upper;urlencode;wordcount;format(1);batch(2,'-');attr('upper');map('default','x');max(attribute='v');min(case_sensitive=true);dictsort(false,'value');dictsort(reverse=true);list;list;string;length;tojson"
FIL=s.split(';')
TES="defined;undefined;none;string;number;float;integer;boolean;true;false;mapping;sequence;iterable;callable;even;odd;divisibleby(3);divisibleby 2;eq 3;ne(3);lt 2;ge 2;gt('a');in [1,2,'a'];in 'Hello';sameas none;sameas true;lower;upper;equalto 'x';filter;test;escaped".split(';')
MET="upper();lower();title();strip();strip('H');split();split(' ');split('l',1);rsplit('l',1);splitlines();startswith('H');endswith(('d','x'));find('o');rfind('o');index('o');count('l');replace('l','L');replace('o','0',1);join(['a','b']);format(1,a=2);zfill(14);center(15,'*');ljust(14);rjust(14,'.');isdigit();isalpha();isspace();islower();isupper();istitle();isalnum();isnumeric();isidentifier();isprintable();isascii();partition('o');rpartition('o');removeprefix('He');removesuffix('ld');swapcase();capitalize();casefold();expandtabs(4);lstrip();rstrip('d');keys();values();items();get('a');get('q',5);copy();index(1);count(1);append(1);pop();update({});foo;foo();a;b.c;items;0;v;role;content;__class__;real;is_integer();find('o',5);startswith('W',6);split(none,1)".split(';')
BIN=['+','-','*','/','//','%','**','~','==','!=','<','<=','>','>=','in','not in','and','or']
def lit():
    r=random.random()
    if r<.5: return random.choice(names)
    return random.choice(['1','0','-2','2.5','1e3','true','false','none',"'a'",'"x y"',"'%s'","'%d-%s'","'{}'","'{0:>5}'",'[]','[1,2,3]','{}',"{'a':1,'b':2}",'(1,2)','()',"''","'aXbX'",'100000000000000000000','0.1','1_000','0x1f',"'\\n'","'\\u00e9'",'range(3)','range(1,10,4)','loop','namespace(a=1)','dict(a=1)','1.5e300','7','-0.0',"'abc' 'def'"])
def ex(d):
    if d<=0: return lit()
    r=random.random()
    if r<.25: return ex(d-1)+'|'+random.choice(FIL)
    if r<.35: return '('+ex(d-1)+' is '+random.choice(['','not '])+random.choice(TES)+')'
    if r<.55: return ex(d-1)+'.'+random.choice(MET)
    if r<.75: return '('+ex(d-1)+' '+random.choice(BIN)+' '+ex(d-1)+')'
    if r<.82: return ex(d-1)+'['+random.choice(['0','-1','1:','::-1',':2','1:3',"'a'","'r'",'5','::2','-2:','none',"'items'",'b','2:0:-1','f'])+']'
    if r<.86: return '('+ex(d-1)+' if '+ex(d-1)+random.choice([' else '+ex(d-1),''])+')'
    if r<.9: return '['+', '.join(ex(d-1) for _ in range(random.randint(0,3)))+']'
    if r<.93: return '{'+', '.join(random.choice(["'a'",'1','none','true','n','s','f'])+': '+ex(d-1) for _ in range(random.randint(0,3)))+'}'
    if r<.96: return random.choice(['not ','-','+'])+ex(d-1)
    return '('+', '.join(ex(d-1) for _ in range(random.randint(2,3)))+')'
W=['','','',' ','\n','\n  ','  \n',' t ','\n\n']
def tag(s,kind='%'):
    o=random.choice(['','','','-','+' ]) ; c=random.choice(['','','','-','+' if kind=='%' else ''])
    if kind=='%': return '{%'+o+' '+s+' '+c+'%}'
    return '{{'+(o if o!='+' else '')+' '+s+' '+(c)+'}}'
def stmts(d): return ''.join(random.choice(W)+st(d)+random.choice(W) for _ in range(random.randint(1,3)))
def st(d):
    r=random.random()
    if d<=0 or r<.35: return tag(ex(random.randint(0,2)),'{')
    if r<.45: return tag('if '+ex(1))+stmts(d-1)+(tag('elif '+ex(1))+stmts(d-1) if random.random()<.3 else '')+(tag('else')+stmts(d-1) if random.random()<.5 else '')+tag('endif')
    if r<.6:
        t=random.choice(['x','x','a, b','x'])
        src=random.choice(['l','ls','messages','range(3)',"d.items()",'d','s','ld','missing','[]','[[1,2],[3,4]]','mixed','ld|groupby("r")']) if random.random()<.8 else ex(1)
        return tag('for '+t+' in '+src+(' if '+ex(1) if random.random()<.2 else ''))+stmts(d-1)+(tag(random.choice(['break','continue'])) if random.random()<.1 else '')+tag('{} '.format('')+'','{').replace('{{','{{').replace('','') *0+(tag(random.choice(['loop.index','loop.last','loop.first','loop.length','loop.revindex0','loop.previtem','loop.nextitem is defined','loop.cycle(1,2)','loop.changed(x)','loop.depth']),'{') if random.random()<.5 else '')+(tag('else')+stmts(d-1) if random.random()<.2 else '')+tag('endfor')
    if r<.7: return tag('set '+random.choice(['x','y','n','ns.a','x, y'])+' = '+ex(1))
    if r<.75: return tag('set x'+random.choice(['',' | upper',' | trim | length']))+stmts(d-1)+tag('endset')
    if r<.8: return tag('macro m('+random.choice(['','a','a, b=2','a=n, b=a'])+')')+stmts(d-1)+random.choice(['{{ a }}{{ b }}','{{ varargs }}','{{ kwargs }}','{{ caller() if caller }}','{{ caller }}',''])+tag('endmacro')+random.choice(['',"{{ m() }}","{{ m(1) }}","{{ m(1,2,3) }}","{{ m(a=5) }}","{{ m(1, q=2) }}",'{% call m() %}in{% endcall %}','{% call(q) m(1) %}in{{ q }}{% endcall %}','{{ m.name }}{{ m.arguments }}'])
    if r<.84: return tag('with '+random.choice(['x = 1','x = n, y = x','']))+stmts(d-1)+tag('endwith')
    if r<.88: return tag('filter '+random.choice(['upper','trim','replace("a","b")','length','indent(2)|upper']))+stmts(d-1)+tag('endfilter')
    if r<.92: return tag('generation')+stmts(d-1)+tag('endgeneration')
    if r<.95: return '{#'+random.choice(['-',' ','+'])+'c'+random.choice(['-',' ','+'])+'#}'
    if r<.97: return random.choice(['{% raw %}','{%- raw -%}','{% raw -%}'])+' {{ x }} '+random.choice(['{% endraw %}','{%- endraw -%}','{% endraw +%}'])
    return tag('set ns = namespace(a=1, b=[])')
lazy=re.compile(r"\|(items|map|select|reject|selectattr|rejectattr|unique|batch|slice|reverse|attr|safe|e|escape|striptags|indent)\b|filter length|previtem|nextitem|\]\[|[0-9a-z]\[[^\]]*:")
print(json.dumps({'messages':MSG,'kwargs':KW}))
for i in range(N):
    t=stmts(2) if random.random()<.6 else '{{ '+ex(3)+' }}'
    if len(t)>600 or '[[1,2],[3,4]]' in t or re.search(r'\)\[[^\]]*:', t) or ('**' in t and ('big' in t or '000' in t or '1f' in t)): continue
    try:
        kw=copy.deepcopy(KW); msg=copy.deepcopy(MSG)
        tp=_compile_jinja_template(t)
        blocks=[];spans=[]
        with tp.environment.activate_tracker(blocks,spans):
            for b in tp.generate(messages=msg,tools=None,documents=None,add_generation_prompt=True,**kw): blocks.append(b)
        if kw!=KW or msg!=MSG: continue
        row={'template':t,'text':''.join(blocks),'spans':[list(x) for x in spans]}
        if re.search(r'<[^>]*(object|0x|Macro|class|function|built-in|Context|Namespace)|Markup|caller', row['text'], re.I) or "'<', '>'" in row['text'] or len(row['text'])>3000: continue
    except Exception as error:
        if lazy.search(t) or random.random()<.6: continue
        row={'template':t,'error':True}
    print(json.dumps(row))
