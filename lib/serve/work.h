/*
 * What ds-prefill and ds-decode share: a model with its engine and KV memory, and the checks of what arrives for it.
 */
#ifndef DS_SERVE_WORK_H
#define DS_SERVE_WORK_H

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/prefix.h"
#include "engine/sample.h"
#include "frame/messages.h"
#include "model/tokenizer.h"
#include "serve/kv_client.h"
#include "serve/kv_options.h"
#include "serve/stage.h"
#include "serve/unit_options.h"

struct ranked;

struct work_options {
	const char *model;
	const char *arith;      /* "bf16" or "float32" */
	int64_t threads;        /* 0: as many as this process may use, shared among the ranks of this machine */
	uint64_t kv_memory;
	const char *dump, *dump_to;
	const char *trace;      /* file to write spans to, or NULL */
	bool stats;
	bool no_prefix;         /* a dump does without, too: no row is to be missing */
	struct unit_options unit;
	struct kv_options kv;
	/* set by the program */
	enum overlap overlap;      /* of a unit's micro-batches */
	bool mtp;                  /* the MTP layer's KV entries are computed */
	bool drafts;               /* and its drafts */
	size_t max_rows, max_segs; /* of a step */
	size_t max_logits;         /* 0: max_segs */
};

#define WORK_DEFAULTS { .unit = UNIT_DEFAULTS }

#define WORK_OPTIONS(o) \
	{ .name = "model", .letter = 'm', .arg = "DIR", .help = "checkpoint: config.json and *.safetensors", \
		.type = OPT_STR, .dst = &(o).model, .env = true }, \
	{ .name = "threads", .letter = 'j', .arg = "N", .help = "compute threads (0: one a CPU)", .def = "0", \
		.type = OPT_INT, .dst = &(o).threads, .max = 1024, .env = true }, \
	{ .name = "arith", .arg = "bf16|float32", .help = "arithmetic between the matrix products", .def = "bf16", \
		.type = OPT_STR, .dst = &(o).arith, .env = true }, \
	{ .name = "kv-memory", .arg = "SIZE", .help = "memory for the KV cache", .def = "1G", .type = OPT_SIZE, \
		.dst = &(o).kv_memory, .env = true }, \
	{ .name = "no-prefix-cache", .help = "keep no KV of earlier prompts in memory", .type = OPT_FLAG, \
		.dst = &(o).no_prefix }, \
	KV_OPTIONS((o).kv), \
	{ .name = "dump", .arg = "POINTS", .help = "write tensors as frames: 'layer.*.attn_out,layer.3.router'", \
		.type = OPT_STR, .dst = &(o).dump }, \
	{ .name = "dump-to", .arg = "FILE|ADDR", .help = "where --dump goes", .type = OPT_STR, .dst = &(o).dump_to }, \
	{ .name = "trace", .arg = "FILE", .help = "write what the stages and threads do, for Perfetto", \
		.type = OPT_STR, .dst = &(o).trace }, \
	{ .name = "stats", .help = "at the end: time, GB/s and GFLOP/s of each stage, on stderr", .type = OPT_FLAG, \
		.dst = &(o).stats }

struct work {
	struct model *model;
	struct engine *engine;
	struct kv_pool *pool;
	struct sampler *sampler;
	struct profile *profile; /* or NULL */
	struct prefix_cache *prefix; /* or NULL */
	struct tokenizer *tokenizer; /* NULL until work_tokenizer was asked for it */
	bool mtp;               /* KV blocks have the MTP layer's entries, too */
	struct segment *segs, *mtp_segs; /* [max_segs] */
	struct ranked *ranked;  /* the unit that this is a rank of, or NULL */
	struct kv_client *store; /* --kv, or NULL */
	int64_t store_timeout_ns;
	bool store_waits;       /* the stage: some request waits for the store */
	bool generated;         /* --store-generated */
	int64_t drain_ns, draining_ns; /* --drain-timeout; since when, 0: not */
	struct dump *dump;      /* --dump, or NULL */
	bool dump_told;         /* its failure was work_dumped's answer */
	size_t max_rows, max_segs;
};

/* After the options are parsed: of a rank of a unit, which one it is, and its own names of files and addresses. */
int work_settle(struct work_options *o, struct stage_options *io, const struct opt_program *p, struct ds_err *err);
/* Opens everything; on failure nothing is left open.  A rank of a unit returns when it has met the others, which have
 * the same role.  io: for what the profile prints and overwrites. */
int work_open(struct work *w, const struct work_options *o, const struct stage_options *io, const char *program,
	const char *role, struct ds_err *err);
/* At the end of a run whose result is rc: the profile's statistics and the end of its trace.  rc, or where it is 0
 * what went wrong with the trace. */
int work_finish(struct work *w, int rc, struct ds_err *err);
void work_close(struct work *w);
int work_cpus(void); /* that this process may run on */
/* Our HELLO: model, vocabulary, arithmetic and KV layout. */
void work_hello(const struct work *w, struct hello *h, const char *program, const char *role);

/* stage_run, with the tensors of --dump written beside it.  A rank of a unit whose input has ended takes part in the
 * steps of the others until theirs has. */
int work_run(struct work *w, const struct work_options *o, const struct stage_config *stage, struct ds_err *err);
/* 0, or why the dump could not be written: to be asked after each step, whose answers are not sent then. */
int work_dumped(struct work *w, struct ds_err *err);

/* Of stage_ops, for a program whose context begins with a pointer to its work. */
int work_on_bell(void *ctx); /* of the unit and of the store */
bool work_on_awaited(void *ctx);
bool work_on_waits(void *ctx);
int work_on_aside(void *ctx, int (*fn)(void *arg, struct ds_err *err), void *arg, struct ds_err *err);
void work_on_ending(void *ctx, struct source *src);
void work_drain(struct work *w);         /* of stage_ops.drain */
void work_state(const struct work *w, struct jw *out); /* of stage_ops.state: what stages have in common */

/* The request of a frame, its prompt checked against the model: ids below the vocabulary (of the logit bias too), the
 * prompt within the context and within the KV memory (DS_DATA, DS_CONFIG). */
int work_request(const struct work *w, const struct frame *f, struct request *r, const uint32_t **ids, size_t *n,
	struct ds_err *err);

/* A frame that a stage has no use for: ERROR and DONE travel on, a droppable one is dropped, any other is refused. */
int work_other(struct source *src, const struct frame *f, struct ds_err *err);

/* What the penalties of a request look at, its prompt being there already; NULL where it has none.  DS_OS. */
int work_history(const struct request *r, const uint32_t *prompt, size_t n, struct sample_history **h,
	struct ds_err *err);
/* The token at `position` of one choice from a row of logits [vocab]; h: of this choice, may be NULL.  False where they
 * are not finite (work_not_finite says so). */
bool work_sample(struct work *w, const struct request *r, size_t choice, const struct sample_history *h,
	const float *logits, uint32_t argmax, double lse, uint64_t position, struct sampled *out);
int work_not_finite(const struct work *w, const struct request *r, struct ds_err *err);

/* The name in a request frame's meta, copied to id; NULL if it has none. */
const char *work_name(const struct frame *f, char id[REQUEST_ID_MAX + 1]);
/* Refuses a frame whose payload goes on in the next one. */
int work_whole(const struct frame *f, struct source *src, struct ds_err *err);

/* The model's tokenizer, read when it is first asked for: most requests need none. */
int work_tokenizer(struct work *w, const struct tokenizer **t, struct ds_err *err);

/* One line of JSON to stderr, for SIGUSR1. */
void work_print_state(struct buf *json);

#endif
