"""Models that SRILM 1.7.3's ngram-count made of six lines, as it printed them, and the options of `estimate`."""

LINES = [
    "the cat sat on the mat", "the cat sat on the cat", "the dog sat", "a dog ran on the mat", "the cat ran", "a mat",
]  # fmt: skip
VOCABULARY = "the\ncat\nsat\non\nmat\nzebra\n"

MODELS = {
    "-order 2 -wbdiscount -unk": (
        {"order": 2, "smoothing": "witten-bell"},
        """
-0.8346326	</s>
-99	<s>	-0.4944261
-0.6585414	<unk>
-1.311754	a	-0.2445486
-1.010724	cat	-0.2323142
-1.311754	dog	-0.2445486
-1.135663	mat	-0.5333442
-1.135663	on	-0.5207551
-1.311754	ran	-0.1933961
-1.135663	sat	-0.2903061
-0.7676858	the	-0.4152448
-0.60206	<s> a
-0.30103	<s> the
-0.60206	a dog
-0.60206	a mat
-0.845098	cat </s>
-0.845098	cat ran
-0.544068	cat sat
-0.60206	dog ran
-0.60206	dog sat
-0.1249387	mat </s>
-0.1249387	on the
-0.60206	ran </s>
-0.60206	ran on
-0.69897	sat </s>
-0.39794	sat on
-0.39794	the cat
-1	the dog
-0.69897	the mat
""",
    ),
    "-order 3 -wbdiscount -interpolate -gt3min 1": (
        {"order": 3, "smoothing": "witten-bell", "interpolate": True, "closed": True},
        """
-0.7676858	</s>
-99	<s>	-0.60206
-1.135663	a	-0.30103
-0.9138138	cat	-0.3679768
-1.135663	dog	-0.30103
-1.010724	mat	-0.60206
-1.010724	on	-0.60206
-1.135663	ran	-0.30103
-1.010724	sat	-0.39794
-0.7096938	the	-0.5228788
-0.5713912	<s> a	-0.30103
-0.2606013	<s> the	-0.4771213
-0.542746	a dog	-0.30103
-0.5246478	a mat	-0.30103
-0.6654902	cat </s>
-0.7589119	cat ran	-0.30103
-0.484754	cat sat	-0.4771212
-0.542746	dog ran	-0.30103
-0.5246478	dog sat	-0.30103
-0.1009005	mat </s>
-0.09757255	on the	-0.3979399
-0.4744812	ran </s>
-0.5246478	ran on	-0.30103
-0.5713912	sat </s>
-0.3575113	sat on	-0.4771213
-0.3599308	the cat	-0.3679767
-0.9138138	the dog	-0.30103
-0.639656	the mat	-0.4771212
-0.4052841	<s> a dog
-0.3986025	<s> a mat
-0.6281188	the cat </s>
-0.6624985	the cat ran
-0.3705062	the cat sat
-0.1915914	a dog ran
-0.1874942	the dog sat
-0.04752651	a mat </s>
-0.03109962	the mat </s>
-0.04605183	ran on the
-0.03015242	sat on the
-0.1754297	cat ran </s>
-0.1874942	dog ran on
-0.08990511	cat sat on
-0.1978105	dog sat </s>
-0.1900846	<s> the cat
-0.6833649	<s> the dog
-0.4263926	on the cat
-0.3082933	on the mat
""",
    ),
    "-order 3 -wbdiscount -interpolate -unk": (
        {"order": 3, "smoothing": "witten-bell", "interpolate": True, "prune": [0, 0, 1]},
        """
-0.7739348	</s>
-99	<s>	-0.6020599
-1.658542	<unk>
-1.150386	a	-0.30103
-0.9225878	cat	-0.3679768
-1.150386	dog	-0.30103
-1.021719	mat	-0.60206
-1.021719	on	-0.60206
-1.150386	ran	-0.30103
-1.021719	sat	-0.39794
-0.7151568	the	-0.5228787
-0.5723794	<s> a
-0.2610842	<s> the	-0.2015117
-0.544598	a dog
-0.5264241	a mat
-0.6675968	cat </s>
-0.7615255	cat ran
-0.4861423	cat sat	-0.4771212
-0.544598	dog ran
-0.5264241	dog sat
-0.1012347	mat </s>
-0.09790421	on the	-0.1809515
-0.4760633	ran </s>
-0.5264241	ran on
-0.5729733	sat </s>
-0.3584775	sat on	-0.4771213
-0.3606593	the cat	-0.06916171
-0.9164275	the dog
-0.6410443	the mat	-0.4771212
-0.370963	the cat sat
-0.03119446	the mat </s>
-0.03024705	sat on the
-0.09007887	cat sat on
-0.1902487	<s> the cat
-0.3085519	on the mat
""",
    ),
    "-order 2 -cdiscount 0.5 -vocab six.vocab -unk": (
        {"order": 2, "smoothing": "absolute", "discount": [0.5], "vocabulary": True},
        """
-0.7647873	</s>
-99	<s>	-0.5740312
-0.7647873	<unk>	-0.005395052
-0.9610819	cat	-0.1879905
-1.10721	mat	-0.6962472
-1.10721	on	-0.6795415
-1.10721	sat	-0.3521825
-0.6922366	the	-0.4756106
-0.961082	zebra
-0.60206	<s> <unk>
-0.2340832	<s> the
-1.079181	<unk> </s>
-0.60206	<unk> <unk>
-1.079181	<unk> mat
-1.079181	<unk> on
-1.079181	<unk> sat
-0.90309	cat </s>
-0.90309	cat <unk>
-0.4259687	cat sat
-0.07918125	mat </s>
-0.07918125	on the
-0.7781513	sat </s>
-0.30103	sat on
-1.146128	the <unk>
-0.30103	the cat
-0.6690068	the mat
""",
    ),
    "-order 2 -cdiscount 0.5 -interpolate -vocab six.vocab": (
        {
            "order": 2,
            "smoothing": "absolute",
            "discount": [0.5],
            "vocabulary": True,
            "closed": True,
            "interpolate": True,
        },
        """
-0.6420233	</s>
-99	<s>	-0.90309
-0.8207387	cat	-0.4771212
-0.9483175	mat	-0.7781512
-0.9483175	on	-0.7781513
-0.9483175	sat	-0.4771212
-0.5743297	the	-0.7781513
-1.78295	zebra
-0.04176569	<s> the
-0.6149768	cat </s>
-0.2695845	cat sat
-0.05981385	mat </s>
-0.05663052	on the
-0.6149768	sat </s>
-0.2695845	sat on
-0.2157277	the cat
-0.5706145	the mat
""",
    ),
    "-order 2 -addsmooth 0.5 -unk": (
        {"order": 2, "smoothing": "additive", "delta": [0.5]},
        """
-0.7552884	</s>
-99	<s>	-0.3024947
-1.869231	<unk>
-1.170262	a	-0.166198
-0.9149892	cat	-0.2311388
-1.170262	dog	-0.166198
-1.024134	mat	-0.1659756
-1.024134	on	-0.1514978
-1.170262	ran	-0.1062001
-1.024134	sat	-0.164192
-0.6931404	the	-0.3901574
-0.6434527	<s> a
-0.3881802	<s> the
-0.6690068	a dog
-0.6690068	a mat
-0.7781513	cat </s>
-0.7781513	cat ran
-0.5563025	cat sat
-0.6690068	dog ran
-0.6690068	dog sat
-0.3590219	mat </s>
-0.3590219	on the
-0.6690068	ran </s>
-0.6690068	ran on
-0.7269987	sat </s>
-0.50515	sat on
-0.4259687	the cat
-0.90309	the dog
-0.6812412	the mat
""",
    ),
    "-order 3 -addsmooth1 0.1 -addsmooth2 0.2 -addsmooth3 0 -gt2min 2": (
        {"order": 3, "smoothing": "additive", "delta": [0.1, 0.2, 0], "prune": [0, 1], "closed": True},
        """
-0.7318661	</s>
-99	<s>	-0.603519
-1.194977	a
-0.904412	cat	-0.1641459
-1.194977	dog
-1.025834	mat	-0.3880602
-1.025834	on	-0.3715451
-1.194977	ran
-1.025834	sat	-0.2232883
-0.6659375	the	-0.4570086
-0.5496719	<s> a
-0.2688453	<s> the	-0.3203352
-0.4210053	cat sat	-0.2108534
-0.1760913	mat </s>
-0.1760913	on the	-0.3521825
-0.3388186	sat on	0
-0.3212334	the cat	-0.09390449
-0.60206	the mat	0
-0.30103	the cat sat
-0.1760913	the mat </s>
-0.1760913	sat on the
-0.1760913	cat sat on
-0.1249387	<s> the cat
-0.1760913	on the mat
""",
    ),
    "-order 2 -gt1max 1 -gt2max 3 -unk": (
        {"order": 2, "smoothing": "good-turing", "gt_max": [1, 3]},
        """
-0.7269987	</s>
-99	<s>	-0.701676
-99	<unk>
-1.20412	a	-0.403335
-0.90309	cat	-0.5160393
-1.20412	dog	-0.403335
-1.028029	mat	-0.5118834
-1.028029	on	-0.49485
-1.20412	ran	-0.3336991
-1.028029	sat	-0.4586378
-0.6600519	the	-0.7596678
-0.544068	<s> a
-0.243038	<s> the
-0.4771213	a dog
-0.4771213	a mat
-0.69897	cat </s>
-0.69897	cat ran
-0.39794	cat sat
-0.4771213	dog ran
-0.4771213	dog sat
-0.1249387	mat </s>
-0.1249387	on the
-0.4771213	ran </s>
-0.4771213	ran on
-0.60206	sat </s>
-0.30103	sat on
-0.30103	the cat
-0.90309	the dog
-0.60206	the mat
""",
    ),
    "-order 2 -gt2max 2": (
        {"order": 2, "smoothing": "good-turing", "gt_max": [1, 2], "closed": True},
        """
-0.7269987	</s>
-99	<s>	-0.5378191
-1.20412	a	-0.2272438
-0.90309	cat	-0.06694679
-1.20412	dog	-0.2272438
-1.028029	mat	-0.5118834
-1.028029	on	-0.49485
-1.20412	ran	-0.1576078
-1.028029	sat	-0.09066105
-0.6600519	the	-0.4586379
-0.90309	<s> a
-0.1760913	<s> the
-0.60206	a dog
-0.60206	a mat
-0.90309	cat </s>
-0.90309	cat ran
-0.7269987	cat sat
-0.60206	dog ran
-0.60206	dog sat
-0.1249387	mat </s>
-0.1249387	on the
-0.60206	ran </s>
-0.60206	ran on
-0.7781513	sat </s>
-0.60206	sat on
-0.243038	the cat
-1.146128	the dog
-0.9700368	the mat
""",
    ),
}
