/*
 * config.json of a DeepSeek-architecture checkpoint.  What changes the mathematics is never guessed: an unknown or
 * missing value of such a field is an error that names it.
 */
#ifndef DS_MODEL_CONFIG_H
#define DS_MODEL_CONFIG_H

#include "base/err.h"
#include "kernels/kernels.h"

enum { CONFIG_MAX_EOS = 8 };

enum rope_type { ROPE_PLAIN, ROPE_YARN };

struct config {
	char model_type[32];           /* deepseek_v2, deepseek_v3, kimi_k2, ... */
	size_t vocab, hidden, layers, mtp_layers;
	size_t dense_layers;           /* first_k_dense_replace: layers before the first MoE layer */
	size_t moe_every;              /* moe_layer_freq */
	size_t heads, q_lora, kv_lora, nope, rope, v; /* q_lora 0: q_proj instead of q_a/q_b */
	size_t inter, moe_inter;       /* widths of dense (0: no layer is) and routed-expert FFNs */
	size_t experts, shared, top_k, groups, topk_groups; /* experts 0: dense model */
	enum score_func score;
	enum topk_method topk;
	bool norm_topk;
	double route_scale, eps;
	double rope_theta;
	enum rope_type rope_type;
	double yarn_factor, beta_fast, beta_slow, mscale, mscale_all_dim;
	size_t yarn_original;          /* original_max_position_embeddings */
	size_t max_positions;
	bool tie_embeddings;
	bool fp8;                      /* quantization_config: linears are F8_E4M3 with 128x128 blocks */
	bool ue8m0;                    /* scale_fmt of the activations' scales */
	size_t eos[CONFIG_MAX_EOS], eos_count;
	int64_t bos;                   /* -1: none */
};

/* Reads dir/config.json; DS_NOINPUT, DS_DATA. */
int config_load(const char *dir, struct config *c, struct ds_err *err);
/* The same where there is such a file; else 0, and *there is false. */
int config_load_if_there(const char *dir, struct config *c, bool *there, struct ds_err *err);
/* The same from text; name is for messages. */
int config_parse(const char *text, size_t n, const char *name, struct config *c, struct ds_err *err);

bool config_is_moe(const struct config *c, size_t layer);
/* softmax scale: (nope + rope)^-0.5 times m(mscale_all_dim)^2 with YaRN, m(x) = 0.1 x ln(factor) + 1 for factor > 1. */
double config_softmax_scale(const struct config *c);
/* cos/sin multiplier m(mscale) / m(mscale_all_dim): 1 without YaRN. */
double config_rope_mscale(const struct config *c);
/* Inverse frequencies [rope / 2], in double, YaRN ramp applied (YaRN paper, arXiv:2309.00071, section 3.2). */
void config_inv_freq(const struct config *c, double *inv_freq);
/* (cos, sin) pairs for one position, angles in double: cs [rope]. */
void config_rope_row(const struct config *c, const double *inv_freq, size_t position, float *cs);

/* total and active without MTP; active: read for one token, embedding excluded; mtp without copies of embedding and
 * head */
struct param_count { uint64_t total, active, mtp; };
struct param_count config_params(const struct config *c);

#endif
