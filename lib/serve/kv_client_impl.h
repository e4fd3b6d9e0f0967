/*
 * What the files of the client have in common.
 *
 *   kv_client.c  its life: threads, the bell, whether the store is well
 *   kv_ask.c     looking up and fetching, as the stage sees it
 *   kv_fetch.c   the same, as the thread does it
 *   kv_put.c     keys, and blocks that are written behind
 */
#ifndef DS_SERVE_KV_CLIENT_IMPL_H
#define DS_SERVE_KV_CLIENT_IMPL_H

#include <pthread.h>
#include <sys/queue.h>

#include "serve/kv_client.h"
#include "store/store.h"

enum { KNOWN = 4096, PUT_KEYS = 64 };

struct kv_ask {
	TAILQ_ENTRY(kv_ask) link;  /* while it is queued, or given up and at work */
	struct kv_client *c;
	int64_t began_ns;
	uint32_t *ids;             /* [count] */
	size_t count, blocks;      /* blocks: of the store, that a further token follows */
	struct store_key *keys;    /* [blocks] found ones, then as if prefill had made the rest */
	uint64_t *decoded;         /* [blocks] */
	uint8_t *here;             /* [blocks] the store has them */
	size_t have;               /* blocks in memory when it began */
	size_t found;              /* blocks */
	/* under the client's lock */
	enum kv_ask_state state;
	bool asked;                /* the store answered: `here` counts */
	bool running, given_up;
	size_t first, arrived, placed; /* blocks: the first to be fetched, whole, begun */
	/* of the fetch */
	void **pages;              /* [(found - first) * pages of a block] NULL: there already */
	bool short_of;             /* that block did not come, though the store said that it is there */
	bool late;                 /* its fetch was cut short by the deadline */
	bool trial;                /* of a store that is slow: whether it still is */
	bool timed;                /* kv_timed knows how it ended */
	bool wrong;                /* the block behind the last that arrived is not what its key says */
	struct kv_seq hold;        /* the stage's: what keeps the pages from others */
};
TAILQ_HEAD(kv_ask_list, kv_ask);

struct kv_write {
	STAILQ_ENTRY(kv_write) link;
	struct store_key key;
	struct block_id id;        /* its ids are ours */
	bool again;                /* though the store says that it is there: it did not come */
	bool doubted;              /* it lies behind one that did not: whether it is there is to be looked at closely */
	unsigned char *memory;     /* [layers, tokens of the block, dim] */
};
STAILQ_HEAD(kv_write_list, kv_write);

struct kv_client {
	struct kv_client_options o;
	struct store_key root;
	size_t pages, block_bytes, stored_bytes; /* pages of a block; its bytes in memory and as stored */
	struct store *store;
	pthread_t asker, writer;
	bool threads;
	int epoll, bell, timer;    /* bell: an eventfd */
	int64_t due;               /* when the timer rings, 0: it does not */
	struct kv_ask_list given_up; /* still at work */
	struct { struct store_key key; int64_t at_ns; } known[KNOWN]; /* taken to be written, and when */
	_Atomic int64_t dropped_ns; /* when the store did not take one: what was taken before may not be there */
	int64_t odd_told_ns;       /* the asker's: when blocks that are not what their keys say were spoken of */
	uint64_t odd;
	unsigned char *bounce, *bounce2; /* the asker's, where items do not go to a page as they are */

	pthread_mutex_t lock;
	pthread_cond_t asks_wake, writes_wake, written; /* written: the queue is empty */
	struct kv_ask_list asks;   /* queued */
	struct kv_ask *at;         /* what the asker is at */
	struct kv_write_list writes;
	size_t write_bytes, writing; /* of those that wait or are being written; their number */
	bool stop, flushing;
	int64_t flush_until;
	struct store_session *asks_by, *writes_by; /* of the two threads; NULL: not yet */
	bool refuses;              /* the last block that was put: full, or it cannot write */
	bool lost;                 /* it failed, and is tried again at retry_ns */
	int64_t retry_ns, pause_ns, back_ns; /* back_ns: when it was found well again */
	bool unmet;                /* it has not answered yet: it may be starting */
	int64_t meet_by_ns;        /* until when that is no loss; 0: it was not tried */
	bool get_failed;           /* it is not well before a get of this is answered: */
	struct store_key get_key;
	int64_t put_retry_ns, put_pause_ns; /* puts were late: none until then */
	bool slow, trying;         /* prompts are not asked for, but for one at a time from slow_until_ns on */
	unsigned late_row;         /* asks in a row that were late */
	int64_t slow_until_ns, slow_pause_ns;
	struct {
		uint64_t asks, found, fetched, wrong, missing, late, written, already, dropped, losses;
	} n;                       /* blocks, but for asks, late and losses */
};

/* Frees the asks that were given up, once the thread is no longer at them. */
void kv_reap(struct kv_client *c);
void kv_write_free(struct kv_write *w);
/* The pause after one of so long that was in vain. */
int64_t kv_longer(int64_t pause);
/* Fails or not: said once on stderr.  got: the key of a get that failed, else NULL. */
void kv_failed(struct kv_client *c, const struct ds_err *why, const struct store_key *got);
void kv_well(struct kv_client *c);
/* It answered. */
void kv_met(struct kv_client *c);
/* A call that failed (rc) is to be made again: the store may be starting.  Waits a little before it says so. */
bool kv_may_come(struct kv_client *c, int rc);
/* An ask has ended, or its fetch is late.  Where several in a row were late the store is left alone for a while, then
 * tried by one. */
void kv_timed(struct kv_client *c, struct kv_ask *a, bool late);
void kv_ring(struct kv_client *c);
/* The session of a thread, *ss, which ends as soon as the client does; NULL: an error, which was said. */
struct store_session *kv_session(struct kv_client *c, struct store_session **ss);
void kv_session_end(struct kv_client *c, struct store_session **ss);
/* id of block b of ids; the chain before it is in keys. */
struct block_id kv_id(const struct kv_client *c, const struct store_key *keys, const uint32_t *ids, size_t b,
	uint64_t decoded);
/* The block of a key is known to have been taken to be written after that time. */
bool kv_known(const struct kv_client *c, const struct store_key *key, int64_t after_ns);

void *kv_asker(void *client);
void *kv_writer(void *client);

#endif
