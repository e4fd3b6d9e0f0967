/* config.json: the released configurations load, whatever is wrong is refused by name, and what follows from them is
 * right. */
#include <jansson.h>
#include <math.h>

#include "base/mem.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "tests/unit/tap.h"

/* tests/unit/configs.json: the released configurations, less what does not matter here, and their sizes. */
static json_t *releases;
static const json_t *v3;

static json_t *parse(const char *s)
{
	json_error_t e;
	json_t *v = json_loads(s, JSON_DECODE_ANY, &e);

	if (!v)
		tap_bail("bad JSON in the test: %s: %s", e.text, s);
	return v;
}

static int load(const json_t *root, struct config *c, struct ds_err *err)
{
	char *s = json_dumps(root, 0);
	int rc = config_parse(s, strlen(s), "x", c, err);

	free(s);
	return rc;
}

static void test_releases(void)
{
	json_t *r;
	size_t i;

	json_array_foreach(releases, i, r) {
		const char *name = json_string_value(json_object_get(r, "name"));
		double want = json_number_value(json_object_get(r, "billions")), got;
		struct config c;
		struct ds_err err = { 0 };

		tap_ok(load(json_object_get(r, "config"), &c, &err) == 0, "%s loads %s", name, err.text);
		got = (double)config_params(&c).total / 1e9;
		tap_ok(fabs(got - want) < 0.006, "%s has %.3f B parameters, want %.2f", name, got, want);
	}
}

static void test_v3(void)
{
	struct config c;
	struct ds_err err = { 0 };
	struct param_count p;

	tap_is_int(load(v3, &c, &err), 0, "V3 loads");
	p = config_params(&c);
	tap_ok(p.total == 671026419200u, "V3: 671,026,419,200 parameters with the correction bias (%llu)",
		(unsigned long long)p.total);
	tap_ok(p.active > 36500000000u && p.active < 37000000000u, "V3: 36.6 B active without the embedding (%llu)",
		(unsigned long long)p.active);
	tap_ok(p.mtp > 11400000000u && p.mtp < 11700000000u, "V3: 11.5 B in the MTP layer (%llu)",
		(unsigned long long)p.mtp);
	tap_ok(c.fp8 && !c.ue8m0 && c.rope_type == ROPE_YARN && c.score == SCORE_SIGMOID && c.topk == TOPK_NOAUX_TC &&
			c.norm_topk && c.eos_count == 1 && c.eos[0] == 1 && c.bos == 0 && c.eps == 1e-6 &&
			!c.tie_embeddings,
		"V3: fields");
	tap_ok(!config_is_moe(&c, 2) && config_is_moe(&c, 3) && config_is_moe(&c, 61),
		"V3: three dense layers, the MTP layer is MoE");
}

/* One field of v3 changed (value NULL: taken out); "a.b" names a member.  want NULL: it must load. */
static void mutate(const char *field, const char *value, const char *want)
{
	json_t *root = json_deep_copy(v3), *o = root;
	const char *dot = strchr(field, '.'), *name = dot ? dot + 1 : field;
	char outer[64];
	struct config c;
	struct ds_err err = { 0 };
	int rc;

	if (dot) {
		snprintf(outer, sizeof(outer), "%.*s", (int)(dot - field), field);
		o = json_object_get(root, outer);
	}
	if (value)
		json_object_set_new(o, name, parse(value));
	else
		json_object_del(o, name);
	rc = load(root, &c, &err);
	if (want)
		tap_ok(rc == DS_DATA && strstr(err.text, field) && strstr(err.text, want), "%s %s: refused: %s", field,
			value ? value : "missing", err.text);
	else
		tap_ok(rc == 0, "%s %s: accepted %s", field, value ? value : "missing", err.text);
	json_decref(root);
}

/* A fault of others: where the gating function or the way of choosing was not stated, one was assumed. */
static void test_missing(void)
{
	static const char *const needed[] = {
		"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
		"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
		"max_position_embeddings", "rms_norm_eps", "hidden_act", "n_routed_experts", "n_shared_experts",
		"moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq", "intermediate_size",
		"scoring_func", "topk_method", "num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor",
		"n_group", "topk_group", "rope_theta", "rope_scaling.type", "rope_scaling.factor",
		"rope_scaling.original_max_position_embeddings", "quantization_config.quant_method",
		"quantization_config.fmt", "quantization_config.activation_scheme",
		"quantization_config.weight_block_size",
	};
	static const char *const harmless[] = {
		"architectures", "attention_bias", "ep_size", "bos_token_id", "eos_token_id",
		"num_nextn_predict_layers", "num_key_value_heads", "rope_scaling", "quantization_config",
		"tie_word_embeddings", "rope_scaling.beta_fast", "rope_scaling.mscale", "torch_dtype",
	};

	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		mutate(needed[i], NULL, "missing");
	for (size_t i = 0; i < ARRAY_LEN(harmless); i++)
		mutate(harmless[i], NULL, NULL);
}

static const struct { const char *field, *value; } bad[] = {
	{ "model_type", "\"llama\"" }, { "model_type", "\"deepseek_v32\"" }, { "model_type", "3" },
	{ "architectures", "[\"DeepseekV32ForCausalLM\"]" }, { "architectures", "[]" },
	{ "scoring_func", "\"tanh\"" }, { "scoring_func", "null" }, { "topk_method", "\"best\"" },
	{ "norm_topk_prob", "\"yes\"" }, { "norm_topk_prob", "1" }, { "hidden_act", "\"gelu\"" },
	{ "attention_bias", "true" }, { "mlp_bias", "true" }, { "rope_interleave", "false" },
	{ "use_mla", "false" }, { "index_topk", "2048" }, { "swiglu_limit", "10.0" },
	{ "qk_layernorm", "true" }, { "moe_layer_freq", "0" }, { "moe_layer_freq", "[0,1]" },
	{ "hidden_size", "0" }, { "hidden_size", "-7168" }, { "hidden_size", "7168.5" },
	{ "hidden_size", "9223372036854775807" }, { "hidden_size", "1e30" }, { "hidden_size", "true" },
	{ "vocab_size", "4294967296" }, { "num_hidden_layers", "100000" }, { "num_key_value_heads", "8" },
	{ "qk_rope_head_dim", "63" }, { "qk_nope_head_dim", "0" }, { "first_k_dense_replace", "62" },
	{ "n_routed_experts", "4097" }, { "n_routed_experts", "250" }, { "n_group", "0" },
	{ "n_group", "5" }, { "n_group", "256" }, { "topk_group", "9" }, { "num_experts_per_tok", "257" },
	{ "num_experts_per_tok", "129" }, { "num_experts_per_tok", "0" }, { "rms_norm_eps", "0" },
	{ "rms_norm_eps", "\"1e-6\"" }, { "rope_theta", "1" }, { "rope_theta", "-5" },
	{ "routed_scaling_factor", "0" }, { "rope_scaling", "[]" }, { "rope_scaling", "\"yarn\"" },
	{ "rope_scaling.type", "\"linear\"" }, { "rope_scaling.type", "\"llama3\"" },
	{ "rope_scaling.rope_type", "\"default\"" }, { "rope_scaling.factor", "0.5" },
	{ "rope_scaling.factor", "\"40\"" }, { "rope_scaling.truncate", "false" },
	{ "rope_scaling.attention_factor", "1.3" }, { "quantization_config", "true" },
	{ "quantization_config.quant_method", "\"awq\"" },
	{ "quantization_config.quant_method", "\"compressed-tensors\"" },
	{ "quantization_config.fmt", "\"e5m2\"" },
	{ "quantization_config.activation_scheme", "\"static\"" },
	{ "quantization_config.weight_block_size", "[64,64]" },
	{ "quantization_config.weight_block_size", "[128]" },
	{ "quantization_config.scale_fmt", "\"float\"" }, { "eos_token_id", "129280" },
	{ "eos_token_id", "[1,-1]" }, { "eos_token_id", "[1,2,3,4,5,6,7,8,9]" }, { "bos_token_id", "1.5" },
	{ "tie_word_embeddings", "0" }, { "num_nextn_predict_layers", "-1" },
	{ "max_position_embeddings", "0" },
};
static const struct { const char *field, *value; } good[] = {
	{ "n_routed_experts", "160" }, { "n_routed_experts", "384" }, { "rope_scaling.rope_type", "\"yarn\"" },
	{ "rope_scaling.attention_factor", "1.0" }, { "rope_scaling", "{\"type\":\"default\"}" },
	{ "rope_scaling", "{\"rope_type\":\"default\"}" }, { "rope_parameters", "null" },
	{ "eos_token_id", "[1,2]" }, { "eos_token_id", "null" }, { "hidden_size", "7168.0" },
	{ "tie_word_embeddings", "true" }, { "quantization_config.scale_fmt", "\"ue8m0\"" },
	{ "index_topk", "null" }, { "dtype", "\"bfloat16\"" },
};

/* A fault of others: numbers of experts that were not foreseen. */
static void test_one_expert(void)
{
	static const char *const ones[] = { "n_routed_experts", "n_group", "topk_group", "num_experts_per_tok" };
	json_t *root = json_deep_copy(v3);
	struct config c;
	struct ds_err err = { 0 };

	json_object_set_new(root, "n_routed_experts", json_integer(1));
	tap_ok(load(root, &c, &err) == DS_DATA && err.text[0], "one expert in eight groups: refused: %s", err.text);
	for (size_t i = 0; i < ARRAY_LEN(ones); i++)
		json_object_set_new(root, ones[i], json_integer(1));
	json_object_set_new(root, "norm_topk_prob", json_false());
	tap_ok(load(root, &c, &err) == 0 && c.experts == 1 && c.top_k == 1, "one expert");
	json_decref(root);
}

static void test_wrong(void)
{
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		mutate(bad[i].field, bad[i].value, "want");
	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		mutate(good[i].field, good[i].value, NULL);
}

/* The published codes differ on the weight of a single expert. */
static void test_top_1(void)
{
	json_t *root = json_deep_copy(v3);
	struct config c;
	struct ds_err err = { 0 };

	json_object_set_new(root, "num_experts_per_tok", json_integer(1));
	tap_ok(load(root, &c, &err) == DS_DATA &&
			strstr(err.text, "norm_topk_prob is true, want false where num_experts_per_tok is 1"),
		"one normalised expert a token: refused: %s", err.text);
	json_object_set_new(root, "norm_topk_prob", json_false());
	tap_ok(load(root, &c, &err) == 0 && c.top_k == 1 && !c.norm_topk, "one expert a token, not normalised");
	json_decref(root);
}

/* The dense width is needed where there is a dense layer. */
static void test_dense_width(void)
{
	json_t *root = json_deep_copy(v3);
	struct config c;
	struct ds_err err = { 0 };

	json_object_set_new(root, "first_k_dense_replace", json_integer(0));
	tap_ok(load(root, &c, &err) == 0 && c.inter == 18432, "no dense layer, a width that is stated");
	json_object_set_new(root, "intermediate_size", json_integer(0));
	tap_ok(load(root, &c, &err) == DS_DATA && strstr(err.text, "intermediate_size is 0"),
		"no dense layer, a wrong width: %s", err.text);
	json_object_del(root, "intermediate_size");
	tap_ok(load(root, &c, &err) == 0 && c.inter == 0, "no dense layer, no width");
	json_object_set_new(root, "moe_layer_freq", json_integer(2));
	tap_ok(load(root, &c, &err) == DS_DATA && strstr(err.text, "intermediate_size is missing"),
		"every second layer dense, no width: %s", err.text);
	json_decref(root);
}

static void refuse_text(const char *text, size_t n, const char *what)
{
	struct config c;
	struct ds_err err = { 0 };
	int rc = config_parse(text, n, "x", &c, &err);

	tap_ok(rc == DS_DATA && err.text[0] && !strchr(err.text, '\n'), "%s: %s", what, err.text);
}

static void test_text(void)
{
	char *deep = malloc(100001), *text = json_dumps(v3, JSON_COMPACT);

	refuse_text("", 0, "an empty file");
	refuse_text("[]", 2, "an array");
	refuse_text("{\"a\":1,\"a\":2}", 13, "a field twice");
	refuse_text("{\"rope_theta\":NaN}", 18, "NaN");
	refuse_text("{\"rope_theta\":1e999}", 20, "an infinite number");
	refuse_text("{\"a\":1}x", 8, "something behind");
	refuse_text("{\"a\0b\":1}", 9, "a NUL");
	if (!deep || !text)
		tap_bail("no memory");
	for (size_t n = 1; n < strlen(text); n += 97)
		refuse_text(text, n, "cut short");
	free(text);
	memset(deep, '[', 100000);
	refuse_text(deep, 100000, "a hundred thousand brackets");
	free(deep);
}

/* ---- what follows ---- */

static void rope_config(struct config *c, size_t dim, double theta, bool yarn)
{
	memset(c, 0, sizeof(*c));
	c->rope = dim;
	c->nope = 128;
	c->rope_theta = theta;
	c->yarn_factor = 1;
	if (yarn) {
		c->rope_type = ROPE_YARN;
		c->yarn_factor = 40;
		c->yarn_original = 4096;
		c->beta_fast = 32;
		c->beta_slow = 1;
		c->mscale = c->mscale_all_dim = 1;
	}
}

static const unsigned char *find(const struct st_file *f, const char *setting, const char *what)
{
	char name[100];

	snprintf(name, sizeof(name), "%s.%s", setting, what);
	for (size_t i = 0; i < f->count; i++)
		if (f->tensors[i].name_len == strlen(name) && !memcmp(f->tensors[i].name, name, strlen(name)))
			return f->tensors[i].data;
	tap_bail("no %s in rope.safetensors", name);
}

static double f64_at(const unsigned char *p, size_t i)
{
	double d;

	memcpy(&d, p + 8 * i, 8);
	return d;
}

static void test_rope(void)
{
	static const struct { const char *name; size_t dim; double theta; bool yarn; } settings[] = {
		{ "v3", 64, 10000, true }, { "plain64", 64, 10000, false }, { "v3_dim32", 32, 10000, true },
		{ "plain16_theta50000", 16, 50000, false },
	};
	struct st_file f;
	struct ds_err err = { 0 };

	if (st_open(&f, "tests/golden/unit/rope.safetensors", &err))
		tap_bail("%s", err.text);
	for (size_t s = 0; s < ARRAY_LEN(settings); s++) {
		size_t half = settings[s].dim / 2;
		const unsigned char *inv = find(&f, settings[s].name, "inv_freq"),
				    *at = find(&f, settings[s].name, "positions"),
				    *cosine = find(&f, settings[s].name, "cos_f64"),
				    *sine = find(&f, settings[s].name, "sin_f64");
		double got[32], worst_inv = 0, worst = 0;
		float cs[64];
		struct config c;

		rope_config(&c, settings[s].dim, settings[s].theta, settings[s].yarn);
		config_inv_freq(&c, got);
		for (size_t i = 0; i < half; i++)
			worst_inv = fmax(worst_inv, fabs(got[i] / f64_at(inv, i) - 1));
		for (size_t r = 0; r < 20; r++) {
			int32_t position;

			memcpy(&position, at + 4 * r, 4);
			config_rope_row(&c, got, (size_t)position, cs);
			for (size_t i = 0; i < half; i++) {
				worst = fmax(worst, fabs(cs[2 * i] - f64_at(cosine, r * half + i)));
				worst = fmax(worst, fabs(cs[2 * i + 1] - f64_at(sine, r * half + i)));
			}
		}
		tap_ok(worst_inv < 1e-14, "%s: inverse frequencies (relative error %.1e)", settings[s].name, worst_inv);
		tap_ok(worst < 5e-8, "%s: cos and sin to float32 at 20 positions up to 163839 (error %.1e)",
			settings[s].name, worst);
	}
	st_close(&f);
}

/* A fault of others: mscale and mscale_all_dim taken for one another, their square left out of the softmax scale. */
static void test_scales(void)
{
	json_error_t je;
	json_t *list = json_load_file("tests/golden/unit/softmax_scale.json", 0, &je), *e;
	size_t i;

	if (!list)
		tap_bail("%s", je.text);
	json_array_foreach(list, i, e) {
		struct config c;
		bool yarn = json_is_number(json_object_get(e, "factor"));
		double scale = json_number_value(json_object_get(e, "softmax_scale")),
		       cs = json_number_value(json_object_get(e, "cos_sin_factor"));

		rope_config(&c, 64, 10000, yarn);
		c.nope = (size_t)json_integer_value(json_object_get(e, "qk_head_dim")) - 64;
		if (yarn) {
			c.yarn_factor = json_number_value(json_object_get(e, "factor"));
			c.mscale = json_number_value(json_object_get(e, "mscale"));
			c.mscale_all_dim = json_number_value(json_object_get(e, "mscale_all_dim"));
		}
		tap_ok(fabs(config_softmax_scale(&c) / scale - 1) < 1e-14 &&
				fabs(config_rope_mscale(&c) / cs - 1) < 1e-14,
			"softmax scale and cos/sin factor: %s", json_string_value(json_object_get(e, "name")));
	}
	json_decref(list);
}

/* transformers 5 writes rope_parameters instead of rope_scaling and rope_theta: the same model. */
static void test_rope_parameters(void)
{
	json_t *root = json_deep_copy(v3);
	struct config a, b;
	struct ds_err err = { 0 };

	load(root, &a, &err);
	json_object_set_new(root, "rope_parameters",
		parse("{\"rope_theta\":10000,\"rope_type\":\"yarn\",\"beta_fast\":32,\"beta_slow\":1,"
		      "\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":"
		      "4096}"));
	tap_ok(load(root, &b, &err) == DS_DATA && strstr(err.text, "rope_scaling"),
		"rope_scaling beside rope_parameters: %s", err.text);
	json_object_del(root, "rope_scaling");
	json_object_del(root, "rope_theta");
	tap_ok(load(root, &b, &err) == 0 && !memcmp(&a, &b, sizeof(a)),
		"rope_parameters says the same as rope_scaling");
	json_decref(root);
}

static void test_goldens(void)
{
	static const char *const names[] = {
		"tests/golden/v3-tiny", "tests/golden/v3-tiny-fp8", "tests/golden/v2lite-tiny",
		"tests/golden/v3-norope-tiny", "tests/golden/v2-group-tiny", "examples/models/tiny-r1",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct config c;
		struct ds_err err = { 0 };

		tap_ok(config_load(names[i], &c, &err) == 0, "%s loads %s", names[i], err.text);
	}
}

int main(void)
{
	struct config c;
	struct ds_err err = { 0 };
	json_error_t je;

	releases = json_load_file("tests/unit/configs.json", 0, &je);
	if (!releases)
		tap_bail("%s", je.text);
	v3 = json_object_get(json_array_get(releases, 0), "config");
	test_releases();
	test_v3();
	test_missing();
	test_wrong();
	test_top_1();
	test_one_expert();
	test_dense_width();
	test_text();
	test_rope();
	test_scales();
	test_rope_parameters();
	test_goldens();
	tap_is_int(config_load("tests/no-such-model", &c, &err), DS_NOINPUT, "no directory: 66");
	tap_ok(strstr(err.text, "cannot open 'tests/no-such-model/config.json': No such file") != NULL, "%s", err.text);
	json_decref(releases);
	return tap_done();
}
