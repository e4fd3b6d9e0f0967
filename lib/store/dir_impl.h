/*
 * Shared by the files of a store in a directory only.
 *
 *   dir.c            opening, closing, sessions   dir_has.c   looking keys up
 *   dir_entry.c      entries of the index, and segments in memory
 *   dir_get.c        reading items          dir_put.c   writing            dir_pin.c   pins
 *   dir_del.c        deleting               dir_orphan.c  what could not be deleted
 *   dir_lock.c       waiting for other threads and processes
 *   dir_seen.c       what other processes did: segments that came, grew, went away; taking over what a dead one left
 *   segment.c        names and marks        segment_write.c  making, appending, sealing
 *   segment_lanes.c  which of them are written      segment_sync.c    bringing them to disk
 *   segment_scan.c   finding the items of a file           segment_idx.c     the file beside a complete segment
 *   evict.c          making room
 *   dir_verify.c     looking through the files   dir_copy.c    gc, export, import
 *   dir_format.c     file `format`               dir_capacity.c   file `capacity`
 *
 * Locks, in this order: dir.write (what this process writes and removes; and with it, where files are removed, made or
 * taken over, the lock of the directory against other processes), dir.scan (looking through the directory),
 * dir.lanes (which segments are being written to), dir.lock (index and table of segments): both held for moments.
 * Payloads are written under none of them: whoever writes has the segment to itself (busy).
 */
#ifndef DS_STORE_DIR_IMPL_H
#define DS_STORE_DIR_IMPL_H

#include <pthread.h>

#include "base/xxh3.h"
#include "store/dir.h"
#include "store/index.h"
#include "store/keyed.h"
#include "store/store_impl.h"

enum {
	SEGMENT_NAME = 48,
	SEGMENT_FRONT_MAX = FRAME_HEAD_BYTES + STORE_META_MAX + FRAME_BIN_BYTES + FRAME_ALIGN,
	SEGMENT_END_MAX = 128,          /* bytes of the frame that ends it */
	IDX_HEAD = 64, IDX_RECORD = 44, /* bytes in the file beside it */
	PIN_CHAINS = 1024,
	LANES = 4,                      /* segments of a kind that are written at once */
};

/* ---- names and marks ---- */

struct segment_id {
	uint64_t time, writer;
	bool main;
};
void segment_name(const struct segment_id *id, const char *suffix, char name[SEGMENT_NAME]);
/* suffix: ".seg", ".idx". */
bool segment_parse(const char *name, const char *suffix, struct segment_id *id);
/* Negative: a is older. */
int segment_order(const struct segment_id *a, const struct segment_id *b);
/* What the frame at that place has as its stream: whoever puts a payload cannot know it, so that nothing in a payload
 * passes for a frame when a damaged segment is searched for the next one. */
uint64_t segment_mark(const struct keyed *secret, const struct segment_id *id, uint64_t offset);

/* ---- locks on files ---- */

enum file_lock { LOCK_NONE, LOCK_SHARED, LOCK_ALONE };
/* flock(2), or where a file system has none, a lock of the open file description.  False: another has it (or errno).
 * wait: until it is free. */
bool file_lock(int fd, enum file_lock how, bool wait);
/* A lock of its own on a segment, whoever writes that: LOCK_SHARED by those who have pinned items of it, LOCK_ALONE by
 * whoever removes it.  False: another process has it. */
bool pin_lock(int fd, enum file_lock how);
/* Waits until that time (CLOCK_MONOTONIC) at most: who has it may be stopped, or take its time.  DS_TEMP. */
int file_lock_until(int fd, enum file_lock how, int64_t until, const char *what, struct ds_err *err);

/* All n bytes from there on, or false: then errno is 0 where the file is shorter.  All reading and writing of parts of
 * files is by these two; what cannot be read says nothing of what is there. */
bool dir_read(int fd, void *p, size_t n, uint64_t at);
bool dir_write(int fd, const void *p, size_t n, uint64_t at);

/* ---- items in a file ---- */

enum scan_got { SCAN_ITEM, SCAN_DROPPED, SCAN_GAP, SCAN_END, SCAN_STOP };

struct scan {
	int fd;
	struct segment_id id;
	const struct keyed *secret;     /* NULL: no search after damage */
	uint64_t at, limit;             /* the next frame; bytes of the file */
	uint64_t frames;                /* its sequence number */
	struct frame_parser *parser;
	uint8_t *buf;                   /* [have] bytes of the file from buf_at on */
	size_t cap, have;
	uint64_t buf_at;
	size_t window;                  /* bytes read at a time */
	/* of what was found: */
	struct frame f;
	struct store_item item;
	uint64_t offset, gap;           /* where it begins; bytes of a gap */
	uint64_t lost;                  /* frames in it */
	uint32_t front;                 /* bytes before the payload */
	uint64_t reserve;               /* of the hello frame */
};
int scan_begin(struct scan *s, int fd, const struct segment_id *id, const struct keyed *secret, struct ds_err *err);
void scan_end(struct scan *s);
/* DS_IO, DS_OS only. */
int scan_next(struct scan *s, enum scan_got *got, struct ds_err *err);

/* ---- the file beside a segment ---- */

struct dir;
struct idx_record {
	struct store_key key;
	uint64_t at_ns;
	uint32_t offset, data, expires; /* as in an index entry */
	uint16_t front, dead;
};
struct idx {
	struct idx_record *rec;
	size_t n, cap;
	uint64_t size;                  /* of the segment */
};
void scan_record(const struct scan *s, struct idx_record *r); /* of an item that was found */
bool idx_add(struct idx *x, const struct idx_record *r); /* false: no memory */
void idx_free(struct idx *x);
/* Under a temporary name, then renamed. */
int idx_write(struct dir *d, const struct segment_id *id, const struct idx *x, struct ds_err *err);
/* DS_NO: there is none, or none that is right.  DS_TEMP: too many files are open. */
int idx_read(struct dir *d, const struct segment_id *id, struct idx *x, struct ds_err *err);
/* How many records it seems to have. */
size_t idx_count(struct dir *d, const struct segment_id *id);
/* The item at that offset is dead; true: there was such a file and it says so now. */
bool idx_drop(struct dir *d, const struct segment_id *id, uint32_t offset);
/* The item at that offset, as the file has it; false: there is no such file, or it does not say. */
bool idx_find(struct dir *d, const struct segment_id *id, uint32_t offset, struct idx_record *r);
int idx_sync(struct dir *d, const struct segment_id *id, struct ds_err *err); /* those are on disk */

/* ---- segments ---- */

struct segment {
	struct segment_id id;
	char name[SEGMENT_NAME];
	uint16_t slot;
	uint64_t number;
	int fd;                   /* -1: not open; set once, under dir.files */
	uint32_t refs;            /* of those who use fd; raised under dir.lock only */
	uint64_t size;            /* of what is known of it: whole frames; atomic, set by segment_grow */
	uint64_t reserve;         /* bytes that it may grow to */
	uint64_t items;           /* in the index */
	uint64_t frames;
	bool sealed, gone, mine;
	bool beside;              /* sealed: its file beside it is there */
	bool skip;                /* evict.c: not this time */
	unsigned pins;            /* under dir.pins */
	struct idx idx;           /* mine and not sealed: what is in it; of whoever writes to it */
	bool busy, broken;        /* under dir.lanes: somebody writes to it; a write failed */
	int64_t written_ns;       /* the same: when somebody had done so last */
	bool growing;             /* atomic: mine and not sealed */
	uint64_t moved;           /* under dir.write: what was moved to it lies below */
	pthread_mutex_t sync;     /* of what follows */
	pthread_cond_t synced_more;
	uint64_t synced;
	uint64_t drops, drops_synced; /* deletions in it, that perhaps another process made; atomic.  Those on disk */
	bool syncing, named, unsafe; /* named: its name is on disk; unsafe: writing it to disk has failed */
};

/* Memory for making and reading frames, of one thread at a time. */
struct tools {
	struct frame_writer *w;
	struct frame_parser *parser;
	struct meta_builder *meta;
	struct xxh3_state xxh;
	uint8_t *front;           /* [SEGMENT_FRONT_MAX] */
	uint8_t *a, *b;           /* payloads */
	size_t a_cap, b_cap;
};
int tools_new(struct tools *t, struct ds_err *err);
void tools_free(struct tools *t);
uint8_t *tools_room(uint8_t **p, size_t *cap, size_t n); /* NULL: no memory */

struct flight { struct store_key key; bool shared; struct flight *next; };

/* dir_orphan.c */
enum orphan_kind {
	ORPHAN_DROP,      /* to be deleted */
	ORPHAN_LATER,     /* the same, once the next is there: what replaced it could not be brought to disk */
	ORPHAN_UNDECIDED, /* it could not be read whether it or the one in the index is younger */
};
struct orphans {
	pthread_mutex_t work, list; /* who deletes some: after dir.scan; the list: after all others */
	struct orphan *all;
	size_t n, cap, undecided;   /* n, undecided: atomic */
	bool lost;                  /* there was no memory for one */
};

struct dir {
	struct store base;
	char *path;
	int fd, lock_fd;
	struct keyed secret;
	bool marked;              /* the secret is known */
	uint64_t writer, time;    /* this process's; of its last segment */
	uint64_t capacity;        /* 0: none; atomic, set under write */
	uint64_t segment_bytes;   /* the same */
	bool said;                /* a capacity, which could not be written to its file yet */
	bool promised;            /* atomic: file `sync` is there */
	uint64_t removed, removed_synced; /* atomic: names that went, so far; those that did on disk, too */

	pthread_rwlock_t lock;
	struct index *index;
	struct segment **seg;     /* [INDEX_NO_SEGMENT] by slot */
	uint8_t *gone;            /* the same: 1 where it is gone */
	uint32_t segs;            /* slots in use are below */
	uint64_t numbers;
	size_t stale;             /* entries of segments that are gone */

	pthread_mutex_t files;    /* opening segments */

	pthread_mutex_t scan;
	int64_t scanned_ns;       /* atomic */
	bool blind;               /* under scan: something could not be read */
	struct listed {
		struct timespec changed; /* of the directory, when it was listed whole */
		bool late;        /* long enough after that change to have seen all of it */
	} listed;

	pthread_mutex_t write;
	int64_t until;            /* under write: how long whoever has it waits for other processes */
	uint64_t going;           /* under write: bytes of a segment that goes when some of it was moved */
	bool unsettled;           /* a segment could not be brought to disk when it was complete */
	struct tools tools;       /* under write */

	pthread_mutex_t lanes;
	pthread_cond_t lane_free[2];
	struct segment *active[2][LANES]; /* small, main; changed under write, too */
	bool beginning[2];        /* somebody begins one */

	pthread_mutex_t flights;
	pthread_cond_t landed;
	struct flight *flight;    /* in the order in which they came */

	pthread_mutex_t pins;
	struct pin *pin[PIN_CHAINS]; /* dir_pin.c */
	uint64_t pinned_bytes;

	struct orphans orphans;

	pthread_mutex_t rest;     /* the thread that looks from time to time */
	pthread_cond_t wake;
	bool stop, threaded;
	pthread_t thread;

	struct store_stat st;     /* counters, atomic */
};

struct dir_session {
	struct store_session base;
	struct dir *d;
	struct tools t;
};

#define COUNT(d, field, n) __atomic_fetch_add(&(d)->st.field, (n), __ATOMIC_RELAXED)

static inline struct dir *dir_of(struct store_session *ss)
{
	return ((struct dir_session *)ss)->d;
}

/* Where an item was when it was looked up; the segment is held. */
struct found {
	struct index_entry e;
	struct segment *seg;
	uint64_t hash;
};
/* Looks in the index, and where it is not there and others may have put it, at what they did.  ask: it counts as asked
 * for.  False: not there. */
bool dir_find(struct dir *d, const struct store_key *key, bool ask, struct found *f);
void segment_release(struct dir *d, struct segment *seg);
/* The descriptor of a segment that is held; -1 and errno. */
int segment_fd(struct dir *d, struct segment *seg);
/* Another process has removed it: what it has may have been replaced or deleted meanwhile. */
bool segment_unlinked(int fd);
/* openat in a store's directory: files alone, since others may hang (FIFOs, devices), or be elsewhere (links): ELOOP,
 * EISDIR, ENOTSUP. */
int file_at(int dir, const char *name, int flags, mode_t mode);
/* The same in d; where descriptors run out, files that nobody uses now are closed. */
int dir_open_file(struct dir *d, const char *name, int flags);
/* errno says that descriptors or memory ran out: it tells nothing of the file. */
bool dir_lacks(void);
/* Closes files that nobody uses now; false: there are none. */
bool dir_close_some(struct dir *d);
/* For an index entry; 0: never.  Rounded up: what is over within the second is seen by who reads the item's front. */
uint32_t store_seconds(uint64_t expires_ns);
/* It is in its last second, and that is over: it is taken out of the index. */
bool dir_over(struct dir_session *ss, const struct found *f);
/* Takes it out of the index if it still lies there; true: it did. */
bool dir_forget(struct dir *d, const struct found *f);

/* ---- dir_del.c ---- */

/* Deletes an item in its file, and in the file beside it.  DS_IO, DS_TEMP: it is perhaps there as before. */
struct place { struct segment *seg; uint32_t offset, front; };
int segment_drop(struct dir *d, const struct place *p, struct ds_err *err);
int segment_drop_at(struct dir *d, int fd, const struct segment_id *id, uint32_t offset, uint32_t front,
	struct ds_err *err);
/* The same of one that the index has left; where it fails, it is an orphan. */
int segment_drop_left(struct dir *d, const struct store_key *key, const struct place *p, struct ds_err *err);
/* Whether items of a segment can be deleted: else one that was replaced would come back. */
int droppable(struct dir *d, struct segment *seg, struct ds_err *err);
/* One thread at a time stores or deletes a key; but any number replace it, each with a time of its own. */
int flight_begin(struct dir *d, struct flight *f, int64_t until, struct ds_err *err);
void flight_end(struct dir *d, const struct flight *f);

/* ---- dir_orphan.c ---- */

void orphan_add(struct dir *d, const struct segment *seg, const struct idx_record *r, enum orphan_kind kind);
/* Those of a key are deleted in their files, before anybody is told that it is deleted or replaced.  DS_IO: some are
 * not. */
int orphans_drop(struct dir *d, const struct store_key *key, struct ds_err *err);
void orphans_retry(struct dir *d);
int orphans_bounded(struct dir *d, struct ds_err *err); /* DS_IO: there are too many */
/* Which one of the key is the younger one cannot be read (tried again). */
bool orphan_undecided(struct dir *d, const struct store_key *key);
bool orphans_undecided_in(struct dir *d, const struct segment *seg);

/* Under dir.lock for writing. */
void entry_remove(struct dir *d, uint32_t entry);
struct segment *segment_add(struct dir *d, const struct segment_id *id, struct ds_err *err);
void segment_gone(struct dir *d, struct segment *seg);
/* When an item of a segment that is held was put; 0: it is not there any more.  DS_IO: that cannot be read. */
int entry_put_at(struct dir *d, struct segment *seg, const struct index_entry *e, uint64_t *at, struct ds_err *err);
/* Two items of one key: which is the one now, and which is to be deleted, once the other is written.  Both held. */
struct rivals {
	struct place known;            /* of one that is known to be older; not held */
	struct segment *seg;           /* the one; NULL: that cannot be read */
	uint64_t end;                  /* it lies below */
	struct place loser;            /* seg NULL: there is none */
};
void rivals_release(struct dir *d, struct rivals *rivals);
/* One that is there already, from elsewhere, stays if it is younger; the other is deleted, or noted in rivals.  False:
 * no memory. */
bool entry_add(struct dir *d, struct segment *seg, const struct idx_record *r, uint64_t hash, unsigned asked,
	struct rivals *rivals);

/* ---- dir_seen.c ---- */

/* Names of the segments of a directory, sorted. */
struct ids { struct segment_id *id; size_t n, cap, odd; /* odd: so called, but no files */ };
int dir_names(struct dir *d, struct ids *ids, struct ds_err *err);
/* Without force at most every so often, and not while another thread does. */
int dir_look(struct dir *d, bool force, struct ds_err *err);
/* At once; DS_IO where something cannot be read: what it has of a key would not be found. */
int dir_look_all(struct dir *d, struct ds_err *err);
/* Records [n] of a segment, but for dead ones, to the index. */
int segment_enter(struct dir *d, struct segment *seg, const struct idx_record *r, size_t n, struct ds_err *err);
/* Under dir.write and the directory's lock: what dead processes left is made complete, as far as that is possible. */
void dir_inherit(struct dir *d);
void dir_sweep(struct dir *d, bool now);
void *dir_thread(void *d);

/* ---- dir_lock.c: no wait is for ever, since another process can be stopped ---- */

enum { DIR_WAIT_S = 5, DIR_OPEN_WAIT_S = 10 }; /* for those who have no deadline */
int64_t dir_until(const struct store_session *ss);
/* dir.write, and what is then waited for, until that time.  DS_TEMP. */
int dir_write_lock(struct dir *d, int64_t until, struct ds_err *err);
void dir_write_unlock(struct dir *d);
int dir_lock(struct dir *d, struct ds_err *err); /* of the directory; under dir.write.  DS_TEMP */
bool dir_trylock(struct dir *d);
void dir_unlock(struct dir *d);

/* ---- segment_write.c, segment_sync.c; all but segment_append and segment_sync under dir.write ---- */

static inline void segment_grow(struct segment *seg, uint64_t size)
{
	__atomic_store_n(&seg->size, size, __ATOMIC_RELAXED);
}
uint64_t segment_holds(const struct segment *seg); /* bytes of its files */
uint64_t segment_bytes(const struct segment *seg); /* that it counts for: while it grows, what it may grow to */
struct append {
	struct store_item item;
	unsigned flags;
	const struct meta_builder *meta; /* complete */
	const struct iovec *iov;
	int iovs;
	unsigned asked;
};
/* By whoever has it (busy).  DS_IO: it is broken then. */
int segment_append(struct dir *d, struct tools *t, struct segment *seg, const struct append *a, struct rivals *rivals,
	struct ds_err *err);
/* A new one, which is the caller's.  DS_TEMP, DS_IO. */
int segment_create(struct dir *d, bool main, uint64_t reserve, struct segment **seg, struct ds_err *err);
int segment_seal(struct dir *d, struct segment *seg, struct ds_err *err);
int segment_close_file(struct dir *d, int fd, const struct segment_id *id, uint64_t frames, uint64_t size,
	uint64_t *end, struct ds_err *err);
void segment_unlock(struct dir *d, struct segment *seg); /* but for what is pinned */
bool segment_unsafe(struct segment *seg);
/* The bytes [at, at + n) of a file become so many frames that readers skip. */
int segment_fill(struct dir *d, int fd, uint64_t at, uint64_t n, uint64_t seq, uint64_t frames, struct ds_err *err);
int segment_sync(struct dir *d, struct segment *seg, uint64_t upto, struct ds_err *err);

/* Whatever was deleted, replaced or moved away until now is so on disk. */
int dir_sync_drops(struct dir *d, struct ds_err *err);

/* ---- segment_lanes.c ---- */

/* A segment of that kind with room for n bytes, for the caller alone until it gives it back; made and room made for it
 * where needed.  Not under dir.write.  DS_TEMP, DS_IO. */
int lane_take(struct dir *d, bool main, uint64_t n, int64_t until, struct segment **seg, struct ds_err *err);
void lane_give(struct dir *d, struct segment *seg, bool broken);
/* Under dir.write and the directory's lock: what is larger than it may be now is completed; and where the store is
 * full, what is not written to, so that whoever writes can have its room. */
void lanes_rest(struct dir *d);
void lanes_mend(struct dir *d, int64_t until); /* those that are broken are completed */
/* The same under dir.write and the directory's lock, for an item that is moved. */
int lane_for_move(struct dir *d, bool main, uint64_t n, struct segment **seg, struct ds_err *err);
/* Under dir.write: all are completed; false: there were none. */
bool lanes_seal(struct dir *d);
bool lanes_enter(struct dir *d, struct segment *seg); /* false: there are too many */
void lanes_leave(struct dir *d, struct segment *seg);

/* ---- evict.c ---- */

uint64_t dir_bytes(struct dir *d);
/* Until so many bytes more are within the limit.  DS_TEMP: they cannot be. */
int dir_make_room(struct dir *d, uint64_t n, uint64_t limit, struct ds_err *err);
/* One segment goes, whatever is in it; false: none can. */
bool dir_evict_one(struct dir *d, bool moving, struct ds_err *err);
/* What was moved to active segments is on disk, where anybody was told of any item that it is. */
bool dir_promised(struct dir *d); /* anybody was told so */
int dir_settle(struct dir *d, struct ds_err *err);
/* Nobody else writes it or has pinned items of it, until segment_unlock. */
bool segment_take(struct dir *d, struct segment *seg);
void segment_remove(struct dir *d, struct segment *seg); /* its files */
/* The records of a complete segment, from the file beside it or from itself. */
int segment_records(struct dir *d, struct segment *seg, struct idx *x, struct ds_err *err);

bool entry_at_place(struct dir *d, const struct segment *seg, const struct idx_record *r, unsigned *asked);
/* Its item is written anew to another segment.  DS_DATA: it is damaged (check: its payload is looked at, too);
 * DS_NOINPUT: it cannot be read. */
struct move { bool to_main, check; unsigned asked; };
int segment_move(struct dir *d, struct segment *from, const struct idx_record *r, const struct move *how,
	struct ds_err *err);

/* ---- the kind's operations ---- */

/* A payload that lies at that place of a file, to dst [item->size].  DS_DATA: it is wrong. */
int item_read(struct tools *t, int fd, uint64_t at, const struct store_item *item, void *dst, struct ds_err *err);

int dir_has(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
	struct ds_err *err);
int dir_stat(struct store_session *ss, struct store_stat *st, struct ds_err *err);
int dir_get(struct store_session *ss, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err);
int dir_ref(struct store_session *ss, const struct store_key *key, struct store_ref *ref, struct ds_err *err);
void dir_unref(struct store_session *ss, struct store_ref *ref);
void dir_doubt(struct store_session *ss, const struct store_key *key);
int dir_put(struct store_session *ss, const struct store_put *p, enum store_put_result *how, struct ds_err *err);
int dir_put_item(struct dir_session *ss, const struct store_put *p, const struct store_item *as,
	enum store_put_result *how, struct ds_err *err);
int dir_del(struct store_session *ss, const struct store_key *key, bool *was, struct ds_err *err);
int dir_pin(struct store_session *ss, const struct store_key *keys, size_t n, bool pin, struct ds_err *err);
int dir_stat_now(struct dir *d, struct store_stat *st);
void dir_unpin_all(struct dir_session *ss);
/* Under d->pins, which comes before d->lock. */
bool dir_pinned(struct dir *d, const struct store_key *key);
void dir_pin_moved(struct dir *d, const struct store_key *key, struct segment *to);

/* ---- dir_capacity.c ---- */

static inline uint64_t dir_capacity(const struct dir *d)
{
	return __atomic_load_n(&d->capacity, __ATOMIC_RELAXED);
}
static inline uint64_t dir_segment_bytes(const struct dir *d)
{
	return __atomic_load_n(&d->segment_bytes, __ATOMIC_RELAXED);
}
/* Takes "?capacity=SIZE" off a path.  DS_USAGE. */
int capacity_option(char *path, struct store_options *o, struct ds_err *err);
/* Under the directory's lock: what the options say goes to the file, or the file says it. */
int capacity_open(struct dir *d, struct ds_err *err);
void capacity_look(struct dir *d); /* under dir.write and the directory's lock: it may have changed */

/* ---- dir_format.c ---- */

int dir_there(const char *path, struct ds_err *err); /* it is a store: 0 */
/* The directory, made where it may be, and its secret. */
int format_open(struct dir *d, struct ds_err *err);

#endif
