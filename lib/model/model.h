/*
 * A checkpoint, used where it lies: safetensors files are mapped read-only and weights point into the mapping, so
 * opening costs no copy and ranks on one machine share the pages.  Every header field, offset, dtype and shape is
 * checked before use.
 */
#ifndef DS_MODEL_MODEL_H
#define DS_MODEL_MODEL_H

#include "model/config.h"

struct ffn { struct mat gate, up, down; };

struct layer {
	struct mat attn_norm;          /* [hidden], as one row */
	struct mat q;                  /* [heads*(nope+rope), hidden], when q_lora is 0 */
	struct mat q_a, q_a_norm, q_b; /* else [q_lora, hidden], [q_lora], [heads*(nope+rope), q_lora] */
	struct mat kv_a;               /* [kv_lora + rope, hidden] */
	struct mat kv_a_norm;          /* [kv_lora] */
	struct mat kv_b;               /* [heads*(nope+v), kv_lora] */
	struct mat o;                  /* [hidden, heads*v] */
	struct mat ffn_norm;           /* [hidden] */
	bool moe;
	struct ffn dense;              /* [inter, hidden], [hidden, inter] */
	struct mat router;             /* [experts, hidden] */
	const float *bias;             /* [experts] e_score_correction_bias, or NULL */
	struct ffn shared;             /* width shared * moe_inter */
	struct ffn *experts;           /* [experts] */
};

struct mtp_layer {
	struct mat enorm, hnorm;       /* [hidden] */
	struct mat eh_proj;            /* [hidden, 2 * hidden] */
	struct layer layer;
	struct mat norm;               /* shared_head.norm */
	struct mat embed, head;        /* its own copies, or the main model's */
};

struct model {
	struct config config;
	struct mat embed, norm, head;
	struct layer *layers;          /* [layers] */
	struct mtp_layer *mtp;         /* [mtp_layers]; empty when the checkpoint's files lack them */
	size_t mtp_count;
	char fingerprint[40];          /* hex: configuration, headers, small tensors, a sample of every other */
	struct checkpoint *files;      /* model/checkpoint.h: the mapped files and all their tensors */
	void **copies;                 /* small tensors that could not be used where they lie (type, alignment) */
	size_t copy_count;
	char dir[1];                   /* path as given (allocated longer) */
};

/* Opens; DS_NOINPUT, DS_DATA (names file, tensor, reason), DS_OS.  Thread-safe. */
int model_open(struct model **m, const char *dir, struct ds_err *err);
/* While it is used: DS_DATA where a file was cut, or written to and the fingerprint is another.  Costs microseconds a
 * file as long as nothing was written.  One thread. */
int model_check(const struct model *m, struct ds_err *err);
void model_close(struct model *m);

/* Calls fn for every tensor that the model does not use: unknown names, and names that the index leaves out.  Returns
 * their number. */
size_t model_unused(const struct model *m,
	void (*fn)(void *arg, const char *file, const char *tensor, size_t tensor_len), void *arg);

/* Every weight's values: NaN, infinity or non-finite scales are refused by name.  Reads the whole checkpoint. */
int model_verify(const struct model *m, struct ds_err *err);
/* XXH3-128 over the configuration and all bytes of all tensors, in name order. hex: 33 bytes. */
int model_fingerprint_full(const struct model *m, char *hex, struct ds_err *err);

#endif
