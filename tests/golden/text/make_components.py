"""Writes components.jsonl: small random tokenizers of many components, and what the tokenizers library does with them.

    python make_components.py SEED COUNT > components.jsonl      (tokenizers 0.23; RUST_BACKTRACE=0, stderr is noise)

One row: {"tokenizer": the text of a tokenizer.json, "cases": [{"text", "special", "ids", "decoded", "skip"}]}.
Not covered, because the library fails or contradicts itself there: texts on which it panics, a normalised added token
that becomes empty, Strip or Prepend before an added prefix space.
"""
import json
import os
import random
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, decoders, processors, trainers, Regex, AddedToken
random.seed(int(sys.argv[1])); N=int(sys.argv[2])
here=os.path.dirname(os.path.abspath(__file__))
corpus=[]
for d in ['qwen2','llama3','metaspace_first']:
    for l in open(os.path.join(here,'tokenizers',d,'cases.jsonl')):
        corpus.append(json.loads(l)['text'])
alphabet=[c for t in corpus for c in t]
specials=["<|im_end|>","<s>","</s>","<unk>","[X]","WORD","ab","foo bar","é","…","　","sw"]
def text():
    k=random.random()
    if k<0.4: return random.choice(corpus)
    out=[]
    for _ in range(random.randint(0,14)):
        r=random.random()
        if r<0.25: out.append(random.choice(specials))
        elif r<0.5: out.append(random.choice([' ','  ','\n','\t','\u00a0','\u3000','\r\n',"'s","'LL",'12345','!!','--','_','▁','\u200d','\u1e9b\u0323','ﬁ','Σ','ΑΣ','İ','ß','\ufeff','\x85','\u180e']))
        elif r<0.8: out.append(''.join(random.choice(alphabet) for _ in range(random.randint(1,5))))
        else: out.append(random.choice(random.choice(corpus).split(' ') or ['']))
    return ''.join(out)
def norm():
    opts=[lambda:normalizers.NFC(),lambda:normalizers.NFKC(),lambda:normalizers.NFD(),lambda:normalizers.NFKD(),lambda:normalizers.Lowercase(),lambda:normalizers.Strip(random.random()<.5,random.random()<.5),
      lambda:normalizers.Replace(random.choice([' ','a','ab',Regex(r'\s+'),Regex(r'[aeiou]')]),random.choice(['▁','','x',' '])),lambda:normalizers.Prepend('▁'),lambda:normalizers.StripAccents()]
    k=random.random()
    if k<0.35: return None
    if k<0.7: return random.choice(opts)()
    return normalizers.Sequence([random.choice(opts)() for _ in range(random.randint(0,3))])
GPT4O=r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATS=[GPT4O,r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
 r"\p{N}{1,3}+",r"\w+",r"\W",r"\d{2}",r"[\p{L}&&[^a-f]]+",r"[a-c[x-z]]+",r"\b",r"(?m:a.)",r"[[:punct:]]",r"[[:alpha:]]+",r"\h+",r"[^\S\n]+",r"\s?\p{P}+",r"[\u4e00-\u9fa5]+","","a|","(?<=a)b",r"\p{Han}+",r"\P{L}+",r"[\P{L}x]+",r"^.",r".$",r"a{,2}",r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"]
BEH=['removed','isolated','merged_with_previous','merged_with_next','contiguous']
def pre1():
    r=random.choice
    opts=[lambda:pre_tokenizers.ByteLevel(add_prefix_space=random.random()<.5,use_regex=random.random()<.6),
     lambda:pre_tokenizers.Split(Regex(r(PATS)),r(BEH),invert=random.random()<.2),lambda:pre_tokenizers.Split(r([' ','a','.','']),r(BEH),invert=random.random()<.2),
     lambda:pre_tokenizers.Digits(individual_digits=random.random()<.5),lambda:pre_tokenizers.Metaspace(prepend_scheme=r(['always','first','never']),split=random.random()<.5),
     lambda:pre_tokenizers.Whitespace(),lambda:pre_tokenizers.WhitespaceSplit(),lambda:pre_tokenizers.Punctuation(r(BEH)),lambda:pre_tokenizers.BertPreTokenizer(),lambda:pre_tokenizers.CharDelimiterSplit(r(['a',' ','-']))]
    return r(opts)()
def pre():
    k=random.random()
    if k<0.15: return None
    if k<0.5: return pre1()
    return pre_tokenizers.Sequence([pre1() for _ in range(random.randint(1,3))])
def dec1():
    r=random.choice
    return r([lambda:decoders.ByteLevel(),lambda:decoders.ByteFallback(),lambda:decoders.Fuse(),lambda:decoders.Strip(' ',r([0,1,2]),r([0,0,0])),lambda:decoders.Replace(r(['▁','a','th']),r([' ','','x'])),
      lambda:decoders.Metaspace(prepend_scheme=r(['always','first','never'])),lambda:decoders.WordPiece(cleanup=random.random()<.5),lambda:decoders.BPEDecoder(suffix=r(['</w>','a']))])()
def dec():
    k=random.random()
    if k<0.15: return None
    if k<0.5: return dec1()
    return decoders.Sequence([dec1() for _ in range(random.randint(1,4))])
rows=[];exp=[]
for n in range(N):
    kind=random.choice(['bpe','bpe','bpe_bytes','bpe_fb','wl','unigram','wordpiece'])
    nm=norm(); pt=pre()
    sub=random.sample(corpus,60)
    try:
        if kind=='bpe': tk=Tokenizer(models.BPE(unk_token=random.choice([None,'<unk>']),fuse_unk=random.random()<.5)); tr=trainers.BpeTrainer(vocab_size=random.randint(200,500),show_progress=False,special_tokens=['<unk>','<s>'])
        elif kind=='bpe_bytes': tk=Tokenizer(models.BPE(ignore_merges=random.random()<.5)); pt=pre_tokenizers.Sequence([pre1(),pre_tokenizers.ByteLevel(add_prefix_space=False,use_regex=random.random()<.3)]); tr=trainers.BpeTrainer(vocab_size=random.randint(300,600),show_progress=False,initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),special_tokens=['<s>'])
        elif kind=='bpe_fb': tk=Tokenizer(models.BPE(byte_fallback=True,unk_token='<unk>',fuse_unk=random.random()<.5)); tr=trainers.BpeTrainer(vocab_size=random.randint(400,600),show_progress=False,limit_alphabet=40,special_tokens=['<unk>','<s>']+['<0x%02X>'%i for i in range(256 if random.random()<.8 else 200)])
        elif kind=='wl': tk=Tokenizer(models.WordLevel(unk_token='<unk>')); tr=trainers.WordLevelTrainer(vocab_size=150,show_progress=False,special_tokens=['<unk>','<s>'])
        elif kind=='unigram': tk=Tokenizer(models.Unigram()); tr=trainers.UnigramTrainer(vocab_size=random.randint(150,400),show_progress=False,unk_token='<unk>',special_tokens=['<unk>','<s>'])
        else: tk=Tokenizer(models.WordPiece(unk_token='<unk>')); tr=trainers.WordPieceTrainer(vocab_size=300,show_progress=False,special_tokens=['<unk>','<s>'])
        if pt is not None: tk.pre_tokenizer=pt
        tk.train_from_iterator(sub,tr)
        if nm is not None: tk.normalizer=nm
    except BaseException as e:
        continue
    d=dec()
    if d is not None: tk.decoder=d
    for s in random.sample(specials,random.randint(0,8)):
        tk.add_tokens([AddedToken(s,single_word=random.random()<.3,lstrip=random.random()<.3,rstrip=random.random()<.3,normalized=random.random()<.5,special=random.random()<.5)])
    if random.random()<.5:
        sid=tk.token_to_id('<s>')
        if sid is not None: tk.post_processor=random.choice([processors.TemplateProcessing(single='<s> $A',special_tokens=[('<s>',sid)]),processors.Sequence([processors.ByteLevel(),processors.TemplateProcessing(single='$A <s>',special_tokens=[('<s>',sid)])])])
    tk=Tokenizer.from_str(tk.to_str())
    text_of=tk.to_str()
    spec=json.loads(text_of)
    names=json.dumps(spec['normalizer'])
    if 'Strip"' in names and ('add_prefix_space": true' in json.dumps(spec['pre_tokenizer']) or any(a['normalized'] for a in spec['added_tokens'])): continue
    cases=[]
    for _ in range(10):
        t=text(); sp=random.random()<.5
        try: ids=tk.encode(t,add_special_tokens=sp).ids; cases.append({'text':t,'special':sp,'ids':ids,'decoded':tk.decode(ids,skip_special_tokens=False),'skip':tk.decode(ids,skip_special_tokens=True)})
        except BaseException: continue
    print(json.dumps({'tokenizer':text_of,'cases':cases}))
