#include "model/config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/file.h"

/* Limits on outside numbers: far above any model, low enough that products of a few of them fit 64 bits. */
enum {
	MAX_WIDTH = 1 << 20,     /* hidden and FFN widths, ranks */
	MAX_HEAD = 1 << 14,      /* one head's width */
	MAX_HEADS = 1 << 12,
	MAX_EXPERTS = 1 << 12,
	MAX_LAYERS = 1 << 10,
	MAX_VOCAB = 1 << 24,
	MAX_POSITIONS = 1 << 30,
	MAX_CONFIG_BYTES = 1 << 24,
};
#define MAX_PARAMS ((uint64_t)1 << 50)

/* What is being read, for messages. */
struct reader {
	const char *name;       /* file */
	const char *prefix;     /* "rope_scaling." or "" */
	const json_t *o;
	struct ds_err *err;
};

static int bad_value(const struct reader *r, const char *field, const char *want)
{
	const json_t *v = json_object_get(r->o, field);
	char *s;
	int rc;

	if (!v)
		return err_set(
			r->err, DS_DATA, "cannot use '%s': %s%s is missing (want %s)", r->name, r->prefix, field, want);
	s = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
	rc = err_set(r->err, DS_DATA, "cannot use '%s': %s%s is %.80s, want %s", r->name, r->prefix, field, s ? s : "?",
		want);
	free(s);
	return rc;
}

static bool absent(const struct reader *r, const char *field)
{
	const json_t *v = json_object_get(r->o, field);

	return !v || json_is_null(v);
}

/* A whole number in [min, max]; "4096.0" is whole. */
static int get_size(const struct reader *r, const char *field, size_t min, size_t max, size_t *out)
{
	const json_t *v = json_object_get(r->o, field);
	char want[64];
	double d;

	if (json_is_integer(v) && json_integer_value(v) >= 0) {
		*out = (size_t)json_integer_value(v);
		if (*out >= min && *out <= max)
			return 0;
	} else if (json_is_real(v)) {
		d = json_real_value(v);
		if (d >= (double)min && d <= (double)max && d == floor(d)) {
			*out = (size_t)d;
			return 0;
		}
	}
	snprintf(want, sizeof want, "a whole number from %zu to %zu", min, max);
	return bad_value(r, field, want);
}

static int get_size_or(const struct reader *r, const char *field, size_t min, size_t max, size_t *out, size_t def)
{
	if (!absent(r, field))
		return get_size(r, field, min, max, out);
	*out = def;
	return 0;
}

static int get_real(const struct reader *r, const char *field, double min, double max, double *out)
{
	const json_t *v = json_object_get(r->o, field);
	char want[64];

	if (json_is_number(v)) {
		*out = json_number_value(v);
		if (*out >= min && *out <= max) /* false for NaN */
			return 0;
	}
	snprintf(want, sizeof want, "a number from %g to %g", min, max);
	return bad_value(r, field, want);
}

static int get_real_or(const struct reader *r, const char *field, double min, double max, double *out, double def)
{
	if (!absent(r, field))
		return get_real(r, field, min, max, out);
	*out = def;
	return 0;
}

static int get_bool(const struct reader *r, const char *field, bool *out)
{
	const json_t *v = json_object_get(r->o, field);

	if (!json_is_boolean(v))
		return bad_value(r, field, "true or false");
	*out = json_is_true(v);
	return 0;
}

/* Index of the field's string among the n words of `words`. */
static int get_word(const struct reader *r, const char *field, const char *const *words, size_t n, size_t *out)
{
	const char *s = json_string_value(json_object_get(r->o, field));
	char want[160] = "";

	for (size_t i = 0; i < n; i++) {
		if (s && strcmp(s, words[i]) == 0) {
			*out = i;
			return 0;
		}
		snprintf(want + strlen(want), sizeof want - strlen(want), "%s\"%s\"", i ? " or " : "", words[i]);
	}
	return bad_value(r, field, want);
}

/* ---- parts ---- */

static const char *const model_types[] = { "deepseek_v2", "deepseek_v3", "kimi_k2" };
static const char *const architectures[] = { "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM" };

static int read_identity(const struct reader *r, struct config *c)
{
	const json_t *a = json_object_get(r->o, "architectures");
	const char *s = json_string_value(json_array_get(a, 0));
	size_t i;
	int rc = get_word(r, "model_type", model_types, ARRAY_LEN(model_types), &i);

	if (rc)
		return rc;
	snprintf(c->model_type, sizeof c->model_type, "%s", model_types[i]);
	if (!a || json_is_null(a))
		return 0;
	for (i = 0; i < ARRAY_LEN(architectures); i++)
		if (s && json_array_size(a) == 1 && strcmp(s, architectures[i]) == 0)
			return 0;
	return bad_value(r, "architectures", "[\"DeepseekV2ForCausalLM\"] or [\"DeepseekV3ForCausalLM\"]");
}

/* Fields that other members of the family have and that would change the result: absent, null, or the value given. */
static int refuse_foreign(const struct reader *r)
{
	static const char *const no[] = { /* absent, null or false */
		"attention_bias", "mlp_bias", "qk_layernorm", "use_qk_norm", "mla_use_nope", "gated_mla",
		"index_topk", "index_n_heads", "swiglu_limit", "compress_ratios", "hc_mult", "sliding_window",
		"attn_logit_softcapping", "final_logit_softcapping",
	};
	static const char *const yes[] = { "use_mla", "rope_interleave" }; /* absent, null or true */

	for (size_t i = 0; i < ARRAY_LEN(no); i++)
		if (!absent(r, no[i]) && !json_is_false(json_object_get(r->o, no[i])))
			return bad_value(r, no[i], "false or none");
	for (size_t i = 0; i < ARRAY_LEN(yes); i++)
		if (!absent(r, yes[i]) && !json_is_true(json_object_get(r->o, yes[i])))
			return bad_value(r, yes[i], "true or none");
	return 0;
}

static int read_shape(const struct reader *r, struct config *c)
{
	size_t kv_heads;
	int rc;

	if ((rc = get_size(r, "vocab_size", 1, MAX_VOCAB, &c->vocab)) ||
	    (rc = get_size(r, "hidden_size", 1, MAX_WIDTH, &c->hidden)) ||
	    (rc = get_size(r, "num_hidden_layers", 1, MAX_LAYERS, &c->layers)) ||
	    (rc = get_size_or(r, "num_nextn_predict_layers", 0, 16, &c->mtp_layers, 0)) ||
	    (rc = get_size(r, "num_attention_heads", 1, MAX_HEADS, &c->heads)) ||
	    (rc = get_size_or(r, "num_key_value_heads", 1, MAX_HEADS, &kv_heads, c->heads)) ||
	    (rc = get_size(r, "kv_lora_rank", 1, MAX_WIDTH, &c->kv_lora)) ||
	    (rc = get_size(r, "qk_nope_head_dim", 1, MAX_HEAD, &c->nope)) ||
	    (rc = get_size(r, "qk_rope_head_dim", 2, MAX_HEAD, &c->rope)) ||
	    (rc = get_size(r, "v_head_dim", 1, MAX_HEAD, &c->v)) ||
	    (rc = get_size(r, "max_position_embeddings", 1, MAX_POSITIONS, &c->max_positions)) ||
	    (rc = get_real(r, "rms_norm_eps", 1e-30, 1.0, &c->eps)))
		return rc;
	if (kv_heads != c->heads)
		return bad_value(r, "num_key_value_heads", "the same as num_attention_heads");
	if (c->rope % 2)
		return bad_value(r, "qk_rope_head_dim", "an even number");
	/* null is V2-Lite's way to say "no query compression"; a config without the field says nothing */
	if (!json_object_get(r->o, "q_lora_rank"))
		return bad_value(r, "q_lora_rank", "a whole number or null");
	return get_size_or(r, "q_lora_rank", 1, MAX_WIDTH, &c->q_lora, 0);
}

static const char *const silu[] = { "silu" };

static bool has_dense(const struct config *c)
{
	for (size_t i = 0; i < c->layers + c->mtp_layers; i++)
		if (!config_is_moe(c, i))
			return true;
	return false;
}

static int read_ffn(const struct reader *r, struct config *c)
{
	size_t i;
	int rc;

	if ((rc = get_word(r, "hidden_act", silu, 1, &i)))
		return rc;
	if (!json_object_get(r->o, "n_routed_experts"))
		return bad_value(r, "n_routed_experts", "a whole number or null");
	if ((rc = get_size_or(r, "n_routed_experts", 1, MAX_EXPERTS, &c->experts, 0)))
		return rc;
	c->moe_every = 1;
	c->dense_layers = c->layers;
	if (c->experts) {
		if (!json_object_get(r->o, "n_shared_experts"))
			return bad_value(r, "n_shared_experts", "a whole number or null");
		if ((rc = get_size_or(r, "n_shared_experts", 0, 64, &c->shared, 0)) ||
		    (rc = get_size(r, "moe_intermediate_size", 1, MAX_WIDTH, &c->moe_inter)) ||
		    (rc = get_size(r, "first_k_dense_replace", 0, c->layers, &c->dense_layers)) ||
		    (rc = get_size(r, "moe_layer_freq", 1, MAX_LAYERS, &c->moe_every)))
			return rc;
	}
	/* A model without dense layers needs no dense width, and may state one. */
	if (!has_dense(c) && absent(r, "intermediate_size"))
		return 0;
	return get_size(r, "intermediate_size", 1, MAX_WIDTH, &c->inter);
}

static const char *const score_words[] = { [SCORE_SOFTMAX] = "softmax", [SCORE_SIGMOID] = "sigmoid" };
static const char *const topk_words[] = {
	[TOPK_GREEDY] = "greedy", [TOPK_GROUP_LIMITED] = "group_limited_greedy", [TOPK_NOAUX_TC] = "noaux_tc",
};

static int read_groups(const struct reader *r, struct config *c)
{
	int rc;

	c->groups = c->topk_groups = 1;
	if (c->topk == TOPK_GREEDY) /* greedy knows no groups, whatever n_group says */
		return 0;
	if ((rc = get_size(r, "n_group", 1, c->experts, &c->groups)) ||
	    (rc = get_size(r, "topk_group", 1, c->groups, &c->topk_groups)))
		return rc;
	if (c->experts % c->groups)
		return bad_value(r, "n_group", "a divisor of n_routed_experts");
	if (c->topk == TOPK_NOAUX_TC && c->groups > 1 && c->experts / c->groups < 2)
		return bad_value(r, "n_group", "groups of two experts and more for noaux_tc");
	if (c->top_k > c->experts / c->groups * c->topk_groups)
		return bad_value(r, "num_experts_per_tok", "at most the experts of topk_group groups");
	return 0;
}

static int read_routing(const struct reader *r, struct config *c)
{
	size_t i, j;
	int rc;

	c->route_scale = 1;
	if (!c->experts)
		return 0;
	if ((rc = get_word(r, "scoring_func", score_words, ARRAY_LEN(score_words), &i)) ||
	    (rc = get_word(r, "topk_method", topk_words, ARRAY_LEN(topk_words), &j)) ||
	    (rc = get_size(r, "num_experts_per_tok", 1, c->experts, &c->top_k)) ||
	    (rc = get_bool(r, "norm_topk_prob", &c->norm_topk)) ||
	    (rc = get_real(r, "routed_scaling_factor", 1e-6, 1e6, &c->route_scale)))
		return rc;
	c->score = (enum score_func)i;
	c->topk = (enum topk_method)j;
	/* The published V2 code scales only weights that it does not normalise, the V3 code scales always. */
	if (c->score == SCORE_SOFTMAX && c->norm_topk && c->route_scale != 1.0)
		return bad_value(r, "routed_scaling_factor", "1 where softmax scores are normalised (norm_topk_prob)");
	/* With one expert a token transformers does not normalise, DeepSeek's own inference code makes the weight 1. */
	if (c->top_k == 1 && c->norm_topk)
		return bad_value(r, "norm_topk_prob", "false where num_experts_per_tok is 1");
	return read_groups(r, c);
}

static int read_yarn(const struct reader *r, struct config *c)
{
	double f = 0;
	int rc;

	/* Defaults are those of DeepSeek's YaRN module. */
	if ((rc = get_real(r, "factor", 1, 1e6, &c->yarn_factor)) ||
	    (rc = get_size(r, "original_max_position_embeddings", 1, MAX_POSITIONS, &c->yarn_original)) ||
	    (rc = get_real_or(r, "beta_fast", 1e-6, 1e6, &c->beta_fast, 32)) ||
	    (rc = get_real_or(r, "beta_slow", 1e-6, 1e6, &c->beta_slow, 1)) ||
	    (rc = get_real_or(r, "mscale", 0, 100, &c->mscale, 1)) ||
	    (rc = get_real_or(r, "mscale_all_dim", 0, 100, &c->mscale_all_dim, 0)))
		return rc;
	if (!absent(r, "truncate") && !json_is_true(json_object_get(r->o, "truncate")))
		return bad_value(r, "truncate", "true or none");
	if (absent(r, "attention_factor"))
		return 0;
	/* It would replace what mscale gives: fine where it says the same. */
	if ((rc = get_real(r, "attention_factor", 0, 100, &f)))
		return rc;
	if (fabs(f - config_rope_mscale(c)) > 1e-6)
		return bad_value(r, "attention_factor", "none, or what mscale and mscale_all_dim give");
	return 0;
}

static const char *const rope_words[] = { [ROPE_PLAIN] = "default", [ROPE_YARN] = "yarn" };

/* One object with the type under "type", "rope_type" or both. */
static int read_scaling(const struct reader *r, struct config *c)
{
	size_t a = 0, b = 0;
	bool has_type = json_object_get(r->o, "type"), has_rope_type = json_object_get(r->o, "rope_type");
	int rc;

	if ((has_type || !has_rope_type) && (rc = get_word(r, "type", rope_words, ARRAY_LEN(rope_words), &a)))
		return rc;
	if (has_rope_type && (rc = get_word(r, "rope_type", rope_words, ARRAY_LEN(rope_words), &b)))
		return rc;
	if (has_type && has_rope_type && a != b)
		return bad_value(r, "rope_type", "the same as type");
	c->rope_type = (enum rope_type)(has_rope_type ? b : a);
	return c->rope_type == ROPE_YARN ? read_yarn(r, c) : 0;
}

/* rope_theta and rope_scaling, or transformers 5's rope_parameters, which holds both.  A config without rope_scaling
 * has plain rope (Moonlight's is such a one). */
static int read_rope(const struct reader *r, struct config *c)
{
	const json_t *scaling = json_object_get(r->o, "rope_scaling"),
		     *params = json_object_get(r->o, "rope_parameters");
	struct reader sub = { .name = r->name, .err = r->err };
	bool old = scaling && !json_is_null(scaling);
	int rc;

	c->rope_type = ROPE_PLAIN;
	c->yarn_factor = 1;
	if (params && !json_is_null(params)) {
		if (!json_is_object(params))
			return bad_value(r, "rope_parameters", "an object");
		if (old)
			return bad_value(r, "rope_scaling", "none beside rope_parameters");
		sub.prefix = "rope_parameters.";
		sub.o = params;
		if ((rc = get_real(json_object_get(params, "rope_theta") ? &sub : r, "rope_theta", 1.001, 1e12,
			     &c->rope_theta)))
			return rc;
		return read_scaling(&sub, c);
	}
	if ((rc = get_real(r, "rope_theta", 1.001, 1e12, &c->rope_theta)))
		return rc;
	if (!old)
		return 0;
	if (!json_is_object(scaling))
		return bad_value(r, "rope_scaling", "an object or null");
	sub.prefix = "rope_scaling.";
	sub.o = scaling;
	return read_scaling(&sub, c);
}

static const char *const fp8_word[] = { "fp8" }, *const e4m3_word[] = { "e4m3" }, *const dynamic_word[] = { "dynamic" };
static const char *const scale_words[] = { "ue8m0" };

static int read_quantization(const struct reader *r, struct config *c)
{
	const json_t *q = json_object_get(r->o, "quantization_config"), *block;
	struct reader sub = { r->name, "quantization_config.", q, r->err };
	size_t i;
	int rc;

	if (!q || json_is_null(q))
		return 0;
	if (!json_is_object(q))
		return bad_value(r, "quantization_config", "an object or null");
	if ((rc = get_word(&sub, "quant_method", fp8_word, 1, &i)) || (rc = get_word(&sub, "fmt", e4m3_word, 1, &i)) ||
	    (rc = get_word(&sub, "activation_scheme", dynamic_word, 1, &i)))
		return rc;
	block = json_object_get(q, "weight_block_size");
	if (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != FP8_BLOCK ||
	    json_integer_value(json_array_get(block, 1)) != FP8_BLOCK)
		return bad_value(&sub, "weight_block_size", "[128, 128]");
	if (!absent(&sub, "scale_fmt")) {
		if ((rc = get_word(&sub, "scale_fmt", scale_words, 1, &i)))
			return rc;
		c->ue8m0 = true;
	}
	c->fp8 = true;
	return 0;
}

static int read_tokens(const struct reader *r, struct config *c)
{
	const json_t *e = json_object_get(r->o, "eos_token_id");
	size_t n = json_is_array(e) ? json_array_size(e) : !absent(r, "eos_token_id");
	size_t bos;
	int rc;

	c->bos = -1;
	if (!absent(r, "bos_token_id")) {
		if ((rc = get_size(r, "bos_token_id", 0, c->vocab - 1, &bos)))
			return rc;
		c->bos = (int64_t)bos;
	}
	if (n > CONFIG_MAX_EOS)
		return bad_value(r, "eos_token_id", "at most 8 ids");
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_is_array(e) ? json_array_get(e, i) : e;

		if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) >= c->vocab)
			return bad_value(r, "eos_token_id", "token ids below vocab_size");
		c->eos[c->eos_count++] = (size_t)json_integer_value(v);
	}
	/* DeepSeek's default; a checkpoint without a head of its own would lack lm_head.weight */
	c->tie_embeddings = false;
	return absent(r, "tie_word_embeddings") ? 0 : get_bool(r, "tie_word_embeddings", &c->tie_embeddings);
}

static int read_all(const struct reader *r, struct config *c)
{
	int rc;

	if ((rc = read_identity(r, c)) || (rc = refuse_foreign(r)) || (rc = read_shape(r, c)) ||
		(rc = read_ffn(r, c)) || (rc = read_routing(r, c)) || (rc = read_rope(r, c)) ||
		(rc = read_quantization(r, c)) || (rc = read_tokens(r, c)))
		return rc;
	if (config_params(c).total > MAX_PARAMS)
		return err_set(r->err, DS_DATA, "cannot use '%s': its sizes make more than 2^50 parameters", r->name);
	return 0;
}

int config_parse(const char *text, size_t n, const char *name, struct config *c, struct ds_err *err)
{
	json_error_t je;
	json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
	struct reader r = { name, "", root, err };
	int rc;

	memset(c, 0, sizeof *c);
	if (!root)
		return err_set(err, DS_DATA, "cannot parse '%s': %s at line %d", name, je.text, je.line);
	rc = json_is_object(root) ? read_all(&r, c) : err_set(err, DS_DATA, "cannot use '%s': not a JSON object", name);
	json_decref(root);
	return rc;
}

static int parse_file(struct text *t, struct config *c, struct ds_err *err)
{
	int rc = config_parse(t->p, t->n, t->path, c, err);

	file_free(t);
	return rc;
}

int config_load(const char *dir, struct config *c, struct ds_err *err)
{
	struct text t;
	int rc = file_read(dir, "config.json", MAX_CONFIG_BYTES, &t, err);

	return rc ? rc : parse_file(&t, c, err);
}

int config_load_if_there(const char *dir, struct config *c, bool *there, struct ds_err *err)
{
	struct text t;
	int rc = file_read_if_there(dir, "config.json", MAX_CONFIG_BYTES, &t, err);

	*there = !rc && t.p;
	return *there ? parse_file(&t, c, err) : rc;
}
