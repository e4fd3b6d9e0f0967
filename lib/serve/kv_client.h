/*
 * A stage's side of a store of KV blocks (lib/store): what a prompt begins with is looked up and fetched, what was
 * computed is written behind.  The stage itself never waits for the store: a thread asks and fetches, another writes.
 *
 * A block of the store is of --kv-block tokens, one or more blocks of the pool ("pages" here).  Of each page `decoded`
 * says how its rows were made: KV_BLOCK: by prefill, all of them; less: the first row that is decode's; KV_BLOCK + 1:
 * decode made the last MTP entry only (store/block.h).
 *
 * A store that fails is left alone until a thread has found it well again, with one line on stderr each: meanwhile
 * nothing is asked and nothing written.
 *
 * All calls are for the stage's thread.  Memory of the pool that a fetch writes to has the fetch among its owners,
 * until that is over: whoever gives a fetch up may give its blocks back at once, nobody else gets them too early.
 */
#ifndef DS_SERVE_KV_CLIENT_H
#define DS_SERVE_KV_CLIENT_H

#include "base/json.h"
#include "engine/kv.h"
#include "store/block.h"

struct kv_client;
struct kv_ask; /* one prompt's */

struct kv_client_options {
	const char *addr;
	const char *password;   /* file, or NULL */
	int64_t timeout_ns;     /* of each call of the store */
	size_t write_bytes;     /* most memory for blocks that wait to be written */
	struct block_layout layout;
	bool pure;              /* blocks that decode made are not looked for */
	struct kv_pool *pool;
};

/* DS_USAGE, DS_CONFIG: the address; a peer that is not there yet is no error. */
int kv_client_open(struct kv_client **c, const struct kv_client_options *o, struct ds_err *err);
/* Writes what waits, until then at most (CLOCK_MONOTONIC); nothing is asked or put any more. */
void kv_client_flush(struct kv_client *c, int64_t until_ns);
void kv_client_close(struct kv_client *c);
size_t kv_client_pages(const struct kv_client *c); /* of a block */

/* An epoll descriptor that is readable when something is over, or was due; other descriptors may be watched with it. */
int kv_client_bell(const struct kv_client *c);
int kv_client_watch(struct kv_client *c, int fd, struct ds_err *err);
/* To be called before looking at what asks have become; after it the bell is silent. */
void kv_client_rung(struct kv_client *c);
/* The bell is to ring then, too. */
void kv_client_due(struct kv_client *c, int64_t mono_ns);

/* ---- looking up and fetching ---- */

/* Begins to look up the blocks of a prompt but for those without a token behind them.  The first `have` pages are in
 * memory, made as decoded [have] says.  NULL: the store is not to be asked, or no memory. */
struct kv_ask *kv_ask_new(struct kv_client *c, const uint32_t *ids, size_t count, const uint8_t *decoded, size_t have);
enum kv_ask_state {
	KV_ASK_LOOKS,
	KV_ASK_FOUND,   /* kv_ask_found says what; to be fetched, or not */
	KV_ASK_FETCHES,
	KV_ASK_OVER,    /* kv_ask_arrived says what is there */
};
enum kv_ask_state kv_ask_state(const struct kv_ask *a);
size_t kv_ask_found(const struct kv_ask *a); /* pages in a row from the prompt's beginning */
/* The block with this page is on its way for somebody else. */
bool kv_ask_elsewhere(const struct kv_ask *a, size_t page);
/* Fetches pages [first, found) into those of s, which has them.  decoded [first]: how the pages before were made.
 * False: what was found does not go on from those, or no memory; the ask is over. */
bool kv_ask_fetch(struct kv_ask *a, const struct kv_seq *s, size_t first, const uint8_t *decoded);
/* Pages that have arrived, from the prompt's beginning, and how each was made: decoded [arrived] from page `first`. */
size_t kv_ask_arrived(const struct kv_ask *a, size_t first, uint8_t *decoded);
/* Ends it, whatever it is at. late: since it took too long. */
void kv_ask_end(struct kv_ask *a, bool late);

/* ---- keys, and writing ---- */

/* Keys of the blocks of ids [count] whose pages were made as decoded [pages] says, as far as there are any; keys has
 * room for count / tokens of a block.  Returns their number. */
size_t kv_keys(const struct kv_client *c, const uint32_t *ids, size_t count, const uint8_t *decoded,
	struct store_key *keys);
struct store_key kv_root(const struct kv_client *c);
/* The first row of decode's of a block of these pages (block_id.decoded); false: there is no such block. */
bool kv_decoded(const struct kv_client *c, const uint8_t *decoded, uint64_t *of_block);

/* What a KV frame says of page n, which may be the last of a block, keys [n] being those of the sequence. */
struct kv_block;
void kv_say(const struct kv_client *c, struct kv_block *k, size_t page, uint8_t decoded, const struct store_key *keys,
	size_t n);

/* Takes a copy of a block, the pages at `pages`, to be written behind; if it is not known to be there: not more is
 * taken than --kv-memory allows for. */
struct store_key kv_put(struct kv_client *c, const struct block_id *id, void *const *pages); /* its key */
/* The blocks of a prompt that is complete, keys [n]; a: what was looked up for it, or NULL. */
void kv_put_prompt(struct kv_client *c, const struct kv_ask *a, const struct kv_seq *s, const uint32_t *ids,
	const uint8_t *decoded, const struct store_key *keys, size_t n);

/* Memory of the pool is held for what was given up; the bell rings when it is free. */
bool kv_client_holds(const struct kv_client *c);
void kv_client_state(struct kv_client *c, struct jw *out); /* of stage_ops.state: a key "kv_store" */
void kv_client_report(struct kv_client *c, struct buf *out); /* the same as a line, for --stats */

#endif
