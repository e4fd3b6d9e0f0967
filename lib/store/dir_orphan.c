/*
 * Items that are in files still though the index has left them, since a file could not be read or written: the rule is
 * that whoever was told that a key is deleted or replaced is right for good.  So each is remembered until it is deleted
 * in its file, and nobody is told so of its key before.
 *
 * Some are there since it could not be read which of two is the younger one ("undecided"): until that can be read,
 * neither of them is there.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/sync.h"
#include "store/dir_impl.h"

enum { MOST = 1 << 16 /* then nothing is deleted or replaced any more until some of them are gone */ };

struct orphan {
	struct segment_id id;
	struct idx_record r;      /* its front, where it is not undecided, is all that is used of it */
	enum orphan_kind kind;
};

static uint64_t count(const struct dir *d)
{
	return __atomic_load_n(&d->orphans.n, __ATOMIC_ACQUIRE);
}

void orphan_add(struct dir *d, const struct segment *seg, const struct idx_record *r, enum orphan_kind kind)
{
	struct orphans *o = &d->orphans;
	void *p;

	pthread_mutex_lock(&o->list);
	p = mem_more(o->all, &o->cap, o->n, sizeof *o->all);
	if (p) {
		o->all = p;
		o->all[o->n] = (struct orphan){ seg->id, *r, kind };
		__atomic_store_n(&o->n, o->n + 1, __ATOMIC_RELEASE);
	} else {
		o->lost = true;
	}
	if (p && kind == ORPHAN_UNDECIDED)
		__atomic_store_n(&o->undecided, o->undecided + 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&o->list);
}

/* From place *i on, one of that key, or of any. */
static bool next(struct dir *d, const struct store_key *key, size_t *i, struct orphan *one)
{
	struct orphans *o = &d->orphans;
	bool found = false;

	pthread_mutex_lock(&o->list);
	while (*i < o->n && !found) {
		found = !key || store_key_equal(key, &o->all[*i].r.key);
		if (found)
			*one = o->all[*i];
		else
			++*i;
	}
	pthread_mutex_unlock(&o->list);
	return found;
}

/* Whoever has o->work alone takes any out. */
static void take_out(struct dir *d, size_t i)
{
	struct orphans *o = &d->orphans;

	pthread_mutex_lock(&o->list);
	if (o->all[i].kind == ORPHAN_UNDECIDED)
		__atomic_store_n(&o->undecided, o->undecided - 1, __ATOMIC_RELEASE);
	memmove(&o->all[i], &o->all[i + 1], (o->n - i - 1) * sizeof *o->all);
	__atomic_store_n(&o->n, o->n - 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&o->list);
}

static struct segment *segment_of(struct dir *d, const struct segment_id *id)
{
	struct segment *seg = NULL;

	pthread_rwlock_rdlock(&d->lock);
	for (uint32_t i = 0; !seg && i < d->segs; i++)
		if (d->seg[i] && !d->seg[i]->gone && segment_order(&d->seg[i]->id, id) == 0)
			seg = d->seg[i];
	if (seg)
		__atomic_fetch_add(&seg->refs, 1, __ATOMIC_RELAXED);
	pthread_rwlock_unlock(&d->lock);
	return seg;
}

static int drop(struct dir *d, const struct orphan *one, struct ds_err *err)
{
	struct segment *seg = segment_of(d, &one->id);
	char name[SEGMENT_NAME];
	int fd, rc;

	if (seg) {
		rc = segment_drop(d, &(struct place){ seg, one->r.offset, one->r.front }, err);
		segment_release(d, seg);
		return rc;
	}
	segment_name(&one->id, ".seg", name);
	fd = dir_open_file(d, name, O_RDWR);
	if (fd < 0)
		return errno == ENOENT ? 0 : err_errno(err, DS_IO, "cannot open '%s/%s'", d->path, name);
	rc = segment_drop_at(d, fd, &one->id, one->r.offset, one->r.front, err);
	if (!rc && dir_promised(d))
		rc = sync_fd(fd, d->path, err);
	close(fd);
	return rc;
}

/* Which of the two is younger can perhaps be read now. */
static void decide(struct dir *d, const struct orphan *one)
{
	struct segment *seg = segment_of(d, &one->id);
	bool entered = true;

	if (!seg)
		return; /* it went away */
	pthread_rwlock_wrlock(&d->lock);
	if (!seg->gone)
		entered = entry_add(d, seg, &one->r, index_hash(d->index, &one->r.key), 0, NULL);
	pthread_rwlock_unlock(&d->lock);
	if (!entered)
		orphan_add(d, seg, &one->r, ORPHAN_UNDECIDED);
	segment_release(d, seg);
}

int orphans_drop(struct dir *d, const struct store_key *key, struct ds_err *err)
{
	struct orphans *o = &d->orphans;
	struct orphan one;
	size_t i = 0;
	int rc = 0;

	if (o->lost)
		return err_set(err, DS_IO, "'%s': what could not be deleted is not known any more", d->path);
	if (!count(d))
		return 0;
	pthread_mutex_lock(&o->work);
	while (!rc && next(d, key, &i, &one)) {
		rc = drop(d, &one, err);
		if (!rc)
			take_out(d, i);
	}
	pthread_mutex_unlock(&o->work);
	return rc;
}

void orphans_retry(struct dir *d)
{
	struct orphans *o = &d->orphans;
	struct orphan one;
	struct ds_err err;

	if (!count(d))
		return;
	pthread_mutex_lock(&o->work);
	for (size_t i = 0, left = count(d); left && next(d, NULL, &i, &one); left--) {
		if (one.kind == ORPHAN_UNDECIDED) {
			take_out(d, i);
			decide(d, &one);
		} else if (one.kind == ORPHAN_DROP && !drop(d, &one, &err)) {
			take_out(d, i);
		} else {
			i++;
		}
	}
	pthread_mutex_unlock(&o->work);
}

int orphans_bounded(struct dir *d, struct ds_err *err)
{
	if (count(d) >= MOST)
		orphans_retry(d);
	return count(d) < MOST ? 0 :
		err_set(err, DS_IO, "'%s': too many items could not be deleted in its files", d->path);
}

bool orphan_undecided(struct dir *d, const struct store_key *key)
{
	struct orphans *o = &d->orphans;
	struct orphan one;
	bool is = false;

	if (!__atomic_load_n(&o->undecided, __ATOMIC_ACQUIRE))
		return false;
	pthread_mutex_lock(&o->work);
	for (size_t i = 0, left = count(d); left && next(d, key, &i, &one); left--) {
		if (one.kind == ORPHAN_UNDECIDED) {
			take_out(d, i);
			decide(d, &one);
		} else {
			i++;
		}
	}
	for (size_t i = 0; !is && next(d, key, &i, &one); i++)
		is = one.kind == ORPHAN_UNDECIDED;
	pthread_mutex_unlock(&o->work);
	return is;
}

bool orphans_undecided_in(struct dir *d, const struct segment *seg)
{
	struct orphans *o = &d->orphans;
	bool any = false;

	pthread_mutex_lock(&o->list);
	for (size_t i = 0; i < o->n && !any; i++)
		any = o->all[i].kind == ORPHAN_UNDECIDED && segment_order(&o->all[i].id, &seg->id) == 0;
	pthread_mutex_unlock(&o->list);
	return any;
}
