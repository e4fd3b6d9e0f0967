/*
 * The weights of a model of this architecture: names (as on the hub), kinds and shapes.  One list serves opening,
 * making and counting.
 */
#ifndef DS_MODEL_LAYOUT_H
#define DS_MODEL_LAYOUT_H

#include "model/model.h"

enum weight_kind {
	WEIGHT_LINEAR, /* FP8 in an FP8 checkpoint */
	WEIGHT_PLAIN,  /* a matrix that stays F32, F16 or BF16: embedding, head, router, eh_proj */
	WEIGHT_NORM,   /* a vector */
	WEIGHT_BIAS,   /* e_score_correction_bias */
};

struct weight {
	char name[128];
	enum weight_kind kind;
	bool optional;      /* the MTP layers' own embedding and head */
	size_t rows, cols;  /* vectors: rows is 1 */
	struct mat *mat;    /* where it goes in the model; NULL for WEIGHT_BIAS */
	const float **bias; /* WEIGHT_BIAS only */
};

/* A model without weights: layers (and mtp_count of MTP) allocated.  model_free_shell frees it. */
struct model *model_shell(const struct config *c, const char *dir, size_t mtp_count, struct ds_err *err);
void model_free_shell(struct model *m);

/* Calls fn for every weight, the same order always; stops and returns what fn returns when that is not 0. */
int layout_walk(struct model *m, int (*fn)(void *arg, const struct weight *w), void *arg);

#endif
