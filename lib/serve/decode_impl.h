/*
 * What the files of the decode stage share.
 *
 *   decode.c        requests and their choices, from beginning to end
 *   decode_arrive.c what arrives: requests, their KV and first tokens, cancels
 *   decode_park.c   KV in ordinary memory, how much there is and who waits for it; the KV of further choices
 *   decode_room.c   where the KV that arrives goes, and who waits for room
 *   decode_turn.c   who takes part in a step, and room in the KV memory for them
 *   decode_step.c   the step
 *   decode_emit.c   tokens on their way out: stop strings, frames, how a choice ends
 *   decode_draft.c  speculation: drafts of the MTP layer
 *   draft_policy.c  whether it pays
 *   decode_store.c  the store of KV blocks: prompts that are computed here, blocks with generated tokens
 */
#ifndef DS_SERVE_DECODE_IMPL_H
#define DS_SERVE_DECODE_IMPL_H

#include <sys/queue.h>

#include "model/stop.h"
#include "serve/decode.h"
#include "serve/draft_policy.h"
#include "serve/hold.h"
#include "serve/prompt.h"

enum job_state {
	JOB_ARRIVING, /* its KV blocks are coming in */
	JOB_PROMPT,   /* its prompt is being computed here */
	JOB_READY,    /* complete; runs, or waits parked */
};

/* A request: what its choices share. */
struct group {
	TAILQ_ENTRY(group) link;
	struct source *src;
	uint64_t stream;
	struct request request;
	uint32_t *ids;            /* [prompt] */
	size_t prompt;            /* tokens */
	struct job *lead;         /* its only job, until it has started */
	size_t arrived;           /* KV blocks complete */
	void *incoming;           /* where the block being read goes, NULL: the stage's memory */
	struct sampled *first;    /* [n] first tokens */
	unsigned char *common;    /* blocks that parked choices share, contents of; NULL: none was parked yet */
	unsigned char *stem;      /* the block in which the prompt ends, for choices that have not run, or NULL */
	struct stop_matcher *stop; /* as it stands before any text; NULL: no stop strings */
	struct done done;         /* as it will be sent */
	size_t open;              /* choices that are not finished */
	int64_t began_ns;
	uint8_t *decoded;         /* --store-generated: [prompt / KV_BLOCK + 1] how the prompt's rows were made, */
	bool traced;              /* and the keys of its blocks are known */
	size_t passed;            /* turns that went to older prompts */
	struct job *turn;         /* while a step is put together: the choice whose turn is next, NULL: no more */
};

/* Tokens whose rows are not stored yet, from the beginning of a block of the store on. */
struct made {
	bool on;
	size_t block;             /* that one */
	struct store_key parent;  /* the key of the block before it */
	uint32_t *ids;            /* [n] */
	size_t n, cap;
};

/* One choice of a request; the only one, until its first token is there. */
struct job {
	TAILQ_ENTRY(job) link;    /* by age */
	struct group *g;
	size_t choice;
	enum job_state state;
	struct prompt at;         /* JOB_PROMPT */
	struct kv_seq kv;
	struct kv_parked parked;  /* bytes set: the KV lies there and in g->common, not in kv */
	bool waits;               /* for the store: it cannot run */
	int64_t roomless_ns, first_ns; /* since when it waits for room for what the store has; as the first; 0: not */
	struct made made;
	uint32_t token;           /* the last one, to be fed next */
	uint64_t position;        /* of that token */
	uint64_t index;           /* of the next token to be sent */
	struct sample_history *history; /* NULL: no penalties */
	struct stop_matcher *stop;
	/* MTP: entries that the layer lacks are made of these.  h NULL: nothing is drafted */
	float *h;                 /* [MTP_PENDING, hidden] */
	uint32_t next[MTP_PENDING]; /* the token that follows each */
	size_t pending;
	size_t rows;              /* in this step: of a prompt, or the token and its drafts; 0: it does not take part */
	size_t rank;              /* while a step is put together: unfinished choices of the request before it, */
	size_t age;               /* and place in the list of all */
	uint32_t feed[MTP_MOST + 1]; /* the token and its drafts */
};

TAILQ_HEAD(job_list, job);
TAILQ_HEAD(group_list, group);

struct decode {
	struct work *w;           /* first: work_on_bell and others */
	struct decode_options o;
	struct job_list jobs;
	struct group_list groups; /* by turn: who took part in a step stands behind those who did not */
	size_t held;              /* groups */
	bool told_not_stored;     /* --store-generated: why */
	struct held_sources paused; /* until fewer requests are held */
	struct held_sources full; /* with the payload of a KV frame unread, until there is memory for it */
	struct source *give_up;   /* of those it brings only d->pressed is kept, NULL: none */
	struct group *pressed;    /* it may arrive though there is none, since no other could; or NULL */
	struct meta_builder *meta;
	struct job **stepping;    /* [max_batch] whose segments the step has */
	struct group **turned;    /* [max_batch] whose turn it was */
	struct prompt **prompts;  /* [max_batch] those of them that are prompts, else NULL */
	struct draft_policy policy;
	uint64_t drafted, accepted; /* tokens, in the whole run */
	bool draining;
	struct ds_err lost;       /* code other than 0: the model is not what it was, no answer may end */
};

/* ---- decode.c ---- */

/* The request with this stream id, or NULL. */
struct group *group_find(struct decode *d, const struct source *src, uint64_t stream);
/* Any of this source. */
bool group_any(const struct decode *d, const struct source *src);
/* The choice leaves; the request, too, with its last one. */
void job_end(struct decode *d, struct job *j);
void group_end(struct decode *d, struct group *g);
/* An ERROR frame ends the request with all its choices. */
int group_fail(struct decode *d, struct group *g, const struct ds_err *why);
/* The first tokens g->first are there: a job for each choice, their first tokens sent.  hidden: of the prompt's last
 * token, or NULL. */
void group_start(struct decode *d, struct job *j, const float *hidden);

/* ---- decode_emit.c ---- */

/* Sends the token at j->position.  True where the choice goes on; else it, and perhaps its request, is no more. */
bool emit(struct decode *d, struct job *j, const struct sampled *t);
/* Sends DONE and ends the request; reason: of the choices that are not finished. */
void group_done(struct decode *d, struct group *g, const char *reason);

/* ---- decode_park.c ---- */

/* The KV of j, which has blocks, moves to ordinary memory.  False: no memory. */
bool park(struct decode *d, struct job *j);
/* Blocks that lie in ordinary memory. */
size_t outside(const struct decode *d);
/* As many as there may be before requests wait with their KV unread: what the pool holds, once more. */
size_t outside_most(const struct decode *d);
/* Free blocks that it takes to bring it back, now. */
size_t unpark_needs(const struct decode *d, const struct job *j);
bool unpark(struct decode *d, struct job *j);
/* Another choice of j's request, not in the list yet: its KV as j's, shared as far as possible; where no block is free
 * it is parked.  NULL: no memory. */
struct job *fork_job(struct decode *d, const struct job *j, size_t choice);

/* ---- decode_room.c ---- */

/* There is a place for the next block of an arriving request: in the pool, or in ordinary memory within its limit. */
bool has_home(const struct decode *d, const struct group *g);
/* That place, whatever the limit.  NULL: no memory. */
void *next_block(struct decode *d, struct group *g);
/* Reads sources again for whose blocks there is a place now. */
void let_in(struct decode *d);

/* ---- decode_turn.c ---- */

/* It is not arriving, in one way or another, and its answers are read. */
bool can_run(const struct job *j);
/* Fills d->stepping with those that take part in the next step, each with its rows; returns their number. */
size_t choose(struct decode *d);

/* ---- decode_step.c ---- */

int decode_step(struct decode *d, bool *busy, struct ds_err *err);

/* ---- decode_store.c; nothing of this does anything without --kv ---- */

/* Before those are chosen that take part in a step: what has become of look-ups. */
void store_look(struct decode *d);
/* The prompt of j was computed here and is complete.  DS_DATA: the model is not what it was. */
int store_prompt(struct decode *d, struct job *j, struct ds_err *err);
/* A KV frame's words, before it is counted as arrived. */
void store_heard(struct decode *d, struct group *g, const struct kv_block *k);
/* j begins to generate; then for each of its tokens, when the rows before it are there. */
void store_begin_made(struct decode *d, struct job *j);
void store_made(struct decode *d, struct job *j, uint32_t token);

/* ---- decode_draft.c ---- */

/* Fills feed and rows of the first n of d->stepping whose rows say how many drafts are wanted besides the token. */
int draft(struct decode *d, size_t n, struct ds_err *err);
/* Of those without drafts in this step: MTP entries for the ones that can keep no more hidden states, so that they
 * draft when speculation pays again, or there is room for it. */
int draft_catch_up(struct decode *d, size_t n, struct ds_err *err);
/* The hidden state at the position before j->token, for the MTP entry that the two make. */
void draft_remember(struct decode *d, struct job *j, const float *hidden);

#endif
