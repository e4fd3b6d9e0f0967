/*
 * Where the time goes: spans of an engine's stages, with the bytes they read and the operations they do.
 *
 * A stage is one profile_begin/profile_end pair; pairs may nest, and a stage's time, bytes and operations are those
 * that no stage within it has.  Bytes and operations come from the shapes of what is asked for, counted where it is
 * asked for:
 *   products   weight bytes: every matrix that got rows, with its scales, once a call; operations 2 * rows * N * K
 *   embedding  a row of the table per token
 *   attention  weight bytes: kv_b_proj once a call; cache bytes: every row a segment can see, once a call; operations,
 *              T = tokens seen, P = pairs (row, token it sees), per head:
 *              expanded  2 T lora (nope + v) + 2 P (nope + rope + v)
 *              absorbed  2 rows lora (nope + v) + 2 P (2 lora + rope)
 *
 * Every function takes NULL for "off", which costs a test.  Not thread-safe: an engine's owner calls.
 */
#ifndef DS_ENGINE_PROFILE_H
#define DS_ENGINE_PROFILE_H

#include "base/json.h"
#include "engine/kv.h"
#include "kernels/kernels.h"

/* The cuts of DESIGN section 5, and what lies around them.  MTP: a whole pass of the draft layer, in which the trace
 * shows its norms and eh_proj under this name and the rest as stages of a layer like any other. */
enum stage_id {
	STAGE_EMBED, STAGE_ATTN0, STAGE_ATTN1, STAGE_DISPATCH, STAGE_SHARED, STAGE_MLP, STAGE_COMBINE, STAGE_DENSE,
	STAGE_MTP, STAGE_HEAD, STAGE_SAMPLE,
	/* of a unit's ranks: what a transfer did not hide behind, and the agreement that begins a step */
	STAGE_VOTE, STAGE_WAIT_DISPATCH, STAGE_WAIT_COMBINE, STAGE_COUNT
};

struct profile;

struct profile_options {
	const char *program;
	const char *trace; /* file, or NULL */
	bool force;        /* replace it */
	int rank;          /* the trace's pid */
	bool stats, json;  /* what profile_finish prints */
};

/* *p is NULL where nothing was asked for.  DS_IO, DS_USAGE, DS_OS. */
int profile_new(struct profile **p, const struct profile_options *o, struct ds_err *err);
/* The stream whose threads are watched and whose limits are measured, and the pool to be counted (may be NULL). */
int profile_watch(struct profile *p, struct kern_stream *s, const struct kv_pool *pool, bool round,
	struct ds_err *err);
/* Measures the machine and prints the statistics where they were asked for (a run that failed before its first step has
 * none), and ends the trace; the stream must still be there.  DS_IO where the trace could not be written. */
int profile_finish(struct profile *p, bool failed, struct ds_err *err);
void profile_free(struct profile *p); /* before the stream */
/* What the statistics say besides, at their end: one of the two is not NULL.  p may be NULL. */
void profile_add(struct profile *p, void (*put)(void *ctx, struct buf *text, struct jw *json), void *ctx);

/* A step, or a pass of the draft layer, around stages. */
void profile_step_begin(struct profile *p, bool draft, size_t rows, size_t segs);
void profile_step_end(struct profile *p);
/* layer: SIZE_MAX where there is none. */
void profile_begin(struct profile *p, enum stage_id stage, size_t layer, size_t rows);
void profile_end(struct profile *p);
/* Ends the innermost stage and begins another in its place, of the same layer and rows. */
void profile_next(struct profile *p, enum stage_id stage);

/* The micro-batch that what follows belongs to; -1: there is only one. */
void profile_micro_batch(struct profile *p, int lane);
/* A transfer of STAGE_DISPATCH or STAGE_COMBINE: from when it left to when it was there. */
void profile_transfer(struct profile *p, enum stage_id stage, size_t layer, size_t lane, int64_t begin, int64_t end,
	size_t bytes);

/* Tokens that were chosen: not drafts. */
void profile_out(struct profile *p, size_t tokens);
void profile_gemm(struct profile *p, const struct gemm *g, size_t count);
void profile_embed(struct profile *p, const struct mat *table, size_t rows);
void profile_attn(struct profile *p, const struct attn_shape *a, const struct attn_seg *segs, size_t count,
	bool absorbed);

/* A request's way through this process. */
void profile_request(struct profile *p, uint64_t stream, const char *id, size_t prompt);
void profile_request_end(struct profile *p, uint64_t stream, const char *id);

/* What was counted so far, for tests. */
struct stage_sum {
	uint64_t calls, weight_bytes, cache_bytes, operations;
	int64_t ns;
};
struct profile_sums {
	struct stage_sum stage[STAGE_COUNT];
	uint64_t steps, rows, out; /* without drafts */
	int64_t step_ns;      /* in steps and drafts, their stages and what lies between them */
	uint64_t attended;    /* steps of others, in which this rank had nothing of its own */
	uint64_t transfers, transfer_bytes;
	int64_t transfer_ns;  /* on their way, maybe two at a time; WAIT_DISPATCH, WAIT_COMBINE: what was exposed */
};
const struct profile_sums *profile_sums(const struct profile *p);
const char *stage_name(enum stage_id stage);

#endif
