/*
 * What the files of the prefill stage share.
 *
 *   prefill.c       what arrives: requests, cancels
 *   prefill_step.c  prompts through the engine, and their frames on their way out
 */
#ifndef DS_SERVE_PREFILL_IMPL_H
#define DS_SERVE_PREFILL_IMPL_H

#include <sys/queue.h>

#include "serve/hold.h"
#include "serve/prefill.h"
#include "serve/prompt.h"

enum {
	MAX_WAITING = 256, /* requests held before sources are left unread */
	AHEAD = 8,         /* requests whose KV is fetched before a step has room for them */
};

struct job {
	TAILQ_ENTRY(job) link;
	struct source *src;
	struct request request;
	struct frame frame;      /* as it came, to be passed on: meta_raw and data are ours */
	struct prompt prompt;    /* its ids lie within frame.data */
	struct kv_seq kv;
	struct prefilled result;
	int64_t began_ns;
	size_t sent;             /* frames already sent: the request, then KV blocks */
	bool cancelled;          /* while it was being sent */
};

TAILQ_HEAD(job_list, job);

struct prefill {
	struct work *w;          /* first: work_on_bell and others */
	size_t chunk;
	struct job_list waiting; /* no KV memory yet */
	struct job_list active;  /* being computed */
	struct job_list sending; /* computed, not yet handed over */
	size_t held;             /* jobs in all lists */
	struct held_sources paused;
	struct prompt **prompts; /* [max_segs] of the step's segments */
	struct meta_builder *meta;
	bool draining;
};

/* ---- prefill.c ---- */

/* The job leaves; it is in no list any more. */
void prefill_job_free(struct prefill *p, struct job *j);

/* ---- prefill_step.c ---- */

int prefill_step(struct prefill *p, bool *busy, struct ds_err *err);

#endif
