"""A model as an ARPA file and as the binary files that KenLM's build_binary made of it, with KenLM's scores.

It lacks the suffix of a 3-gram, which KenLM fills in. The scores are those of `query -v word`.
"""

import base64
import zlib

ARPA = r"""\data\
ngram 1=6
ngram 2=6
ngram 3=3

\1-grams:
-1.5	<unk>	0
0	<s>	-0.5
-1	</s>	0
-0.75	a	-0.25
-1.25	b	-0.125
-2	naïve	-0.0625

\2-grams:
-0.5	<s> a	-0.25
-0.375	a b	-0.5
-0.625	a a	0
-0.25	b </s>	0
-0.875	b a	-0.75
-1.125	naïve b	0

\3-grams:
-0.125	<s> a b
-0.0625	a b </s>
-0.1875	b a naïve

\end\
"""

_PACKED = {  # by the type: zlib, then base 85
    "probing": (
        "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFYNOdhaD7Gp!B"
        "nHf+4NL(;G`|>4madvb$T!1U*`^Vbi2iZ(OcF=0?IiZ~s(pZ7)f;z>$mTjeAyUn$<Ce{Awe#L^J`@nvXC!n1DQ2zk=4nVqL9|OYz"
        "5Fbc0H~{&3VY)azF=e!DG!_Qxw*%>GEPDH)wz{SjYQ{dzHuDR64mB$P*&z9b$w!u%3*PUa!oZ*awy*Vl-C7Qj@ID3x0S6@e;lM88"
        "j_QKgRG|I|`?1Nd>Afw&oS3$Tfgu4X@30?PF7V1!g_L;ZB9MF4zO?iGv7ML)@`KftZ0GYK*(pHv`)o?{vh5gbih)=kNF*{OG2|s4"
        "USF2V002lqZd?"
    ),
    "probing with rest costs": (
        "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFYNOdhajL=s~|"
        "qnQ~{0Z3dhJNxn_adCEZIb47%=ljRn;s@DGKz7h-?>V8J6Vh0L?1DPQy_RjIV7tw=v?kU5>3+q6q5HsokSCxt2<%7l7f`$b$aes;"
        "8}<QdAbSBw9LQb(Qs)2^-wQGX*+h;{Oc^a3jfH{2b`bLp>}xD~`=PeFrWL{mnZ>YQv(5a%o<q$FK)xN+u6>h_EHf9p-#>+cK>_M6"
        "h5fDX>(+9Jg!eHp2sl8*1P)*e2fKtjstaOMf#yws>YcD3o4Pf<w?&u})7CIBB<zRyDFH=Y;FYNgDe=lhAit@7Y3KW6J24OBXR9mO"
        "&gVn2Q-FH**_7sG+cDS_1F=4kNMuN2$V)uDzATji0N~7f(E"
    ),
    "trie": (
        "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFYNOdhajf{KAK"
        "8&r-RMGXY7Lg|7!#l4nor3`}E*_SVgi?au<_MQ{kIU$WJ=ljRn;s@F0T3VB8|8&1X=sd6=<PZi_uphy60J0nQA;}#8^7kU_ZUF0N"
        "f%6xD`1@GV3}k1(4uJmp0mQ$Q7#JqV1NjO-jlY2ce}MuV3Q&PBAm6JoFeCs~99YlH(C`N&z=v=TJPbZ@GB9iq2eRdnEwL%h%eG^%"
        "DYj!sWXMZAyuK`z!A2j*OJV>3^;t>z"
    ),
    "quantised trie": (
        "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFYNOdhajhKhkO"
        "8&r-RMGXY7Lg|7!#l4nor3`}E*_SVgi?au<_MQ{kIU$WJ=ljRn;s@F0T3VB8|8&2C>0@GsnbH8XU*G@(!-V||3<*H2upi_$pd0o9"
        "<@SLTAk;bRhhPRM2FZiO!E*Z$m;s6#_5#h>k1zuc_9K`MP;=nm07xIgj}2h`EO7n;5Pu&lnt|*L*g>VBhj~kY%~d|B12Cbf^O#^v"
        "o6@{&I|iF#JBCDtyu`!n%TgI^^ntu21^`y#TK@"
    ),
    "trie with array pointers": (
        "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFYNOdhajfr^1J"
        "8&r-RMGXY7Lg|7!#l4nor3`}E*_SVgi?au<_MQ{kIU$WJ=ljRn;s@F0T3VB8|8&1X=sd6=<PZi_uphy60J0nQA;}#8^7kU_ZUF0N"
        "f%6xD`1@GV3}k1(0hqCh0=@eKh<_<DFiemK@)dyQ{RRsB1qyH|Kn1>l0!591Apxl3z<OqehCd(yK7=#jLGy`|fnkF<kS&jFiA`x<"
        "wjF~_u^mGqLtf(H^<}9HHu^wb5(5Cv1xfw"
    ),
    "quantised trie with array pointers": (
        "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFYNOdhajg^GbN"
        "8&r-RMGXY7Lg|7!#l4nor3`}E*_SVgi?au<_MQ{kIU$WJ=ljRn;s@F0T3VB8|8&2C>0@GsnbH8XU*G@(!-V||3<*H2upi_$pd0o9"
        "<@SLTAk;bRhhPRM2FZiO!E*Z$m;s6#_5#h>k1zuc_9K`MP;=nm07xIgj}2h`EO7n;5Pu&lnt|*LH~=$N(MmxN^OgXct9()iU_w*p"
        "F~OKNrFq$Q3^v7f42cYRiHFyhr83y)19?dd0Aqh!1O"
    ),
}
BINARIES = {type: zlib.decompress(base64.b85decode(packed)) for type, packed in _PACKED.items()}

# Text, then (log10 probability, words of the longest match) of each word. The scores of all binaries are equal, because
# there are fewer values than codes.
SCORES = {
    "a b": [(-0.5, 2), (-0.125, 3), (-0.0625, 3)],
    "b a naïve b c a": [(-1.75, 1), (-0.875, 2), (-0.1875, 3), (-1.125, 2), (-1.625, 1), (-0.75, 1), (-1.25, 1)],
    "": [(-1.5, 1)],
    "<unk> a a b": [(-2, 1), (-0.75, 1), (-0.625, 2), (-0.375, 2), (-0.0625, 3)],
}
