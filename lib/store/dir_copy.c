/* Segments written anew without what is dead; a whole store as one stream, and back. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "frame/hello.h"
#include "store/dir_impl.h"

static int open_dir(const char *path, const struct store_options *o, struct store **s, struct dir_session **ss,
	struct ds_err *err)
{
	struct store_session *base;
	int rc = store_dir.open(s, path, o, err);

	if (rc)
		return rc;
	rc = store_dir.begin(&base, *s, err);
	*ss = rc ? NULL : (struct dir_session *)base;
	return rc;
}

static void close_dir(struct store *s, struct dir_session *ss)
{
	if (ss)
		store_dir.end(&ss->base);
	if (s)
		store_dir.close(s);
}

/* The complete segments, held, in their order. */
struct held { struct segment **seg; size_t n; };

static int older_first(const void *a, const void *b)
{
	return segment_order(&(*(struct segment *const *)a)->id, &(*(struct segment *const *)b)->id);
}

static int hold_all(struct dir *d, bool sealed, struct held *h, struct ds_err *err)
{
	pthread_rwlock_rdlock(&d->lock);
	h->n = 0;
	h->seg = mem_array(d->segs, sizeof *h->seg);
	for (uint32_t i = 0; h->seg && i < d->segs; i++)
		if (d->seg[i] && !d->seg[i]->gone && !d->seg[i]->mine && (d->seg[i]->sealed || !sealed)) {
			__atomic_fetch_add(&d->seg[i]->refs, 1, __ATOMIC_RELAXED);
			h->seg[h->n++] = d->seg[i];
		}
	pthread_rwlock_unlock(&d->lock);
	if (!h->seg)
		return err_nomem(err, d->segs * sizeof *h->seg, "segments");
	if (h->n)
		qsort(h->seg, h->n, sizeof *h->seg, older_first);
	return 0;
}

static void release_all(struct dir *d, struct held *h)
{
	for (size_t i = 0; i < h->n; i++)
		segment_release(d, h->seg[i]);
	free(h->seg);
}

/* ---- dead bytes ---- */

static bool alive(struct dir *d, const struct segment *seg, const struct idx_record *r)
{
	unsigned asked;

	return !r->dead && (!r->expires || r->expires > (uint64_t)time_wall_ns() / 1000000000 + 1) &&
		entry_at_place(d, seg, r, &asked);
}

/* Bytes of a segment but for so many, its first frame and its last: no item is as small. */
static uint64_t unused(struct dir *d, struct segment *seg, uint64_t used)
{
	uint64_t size = __atomic_load_n(&seg->size, __ATOMIC_RELAXED);
	uint8_t head[FRAME_HEAD_BYTES];
	int fd = segment_fd(d, seg);

	if (fd >= 0 && dir_read(fd, head, sizeof head, 0))
		used += frame_front_bytes(head);
	return size > used + SEGMENT_END_MAX ? size - used : 0;
}

static uint64_t dead_bytes(struct dir *d, struct segment *seg, const struct idx *x)
{
	uint64_t used = 0;

	for (size_t i = 0; i < x->n; i++)
		if (alive(d, seg, &x->rec[i]))
			used += ((uint64_t)x->rec[i].front + x->rec[i].data) * INDEX_UNIT;
	return unused(d, seg, used);
}

/* Many that are small, as of processes that ran for a short time, become one. */
static bool is_small(const struct dir *d, const struct segment *seg)
{
	return seg->size < d->segment_bytes / 8;
}

static bool has_fellows(const struct dir *d, const struct segment *seg, const struct held *h)
{
	size_t n = 0;

	for (size_t i = 0; i < h->n; i++)
		n += h->seg[i]->id.main == seg->id.main && is_small(d, h->seg[i]);
	return is_small(d, seg) && n > 1;
}

static bool any_alive(struct dir *d, struct segment *seg, const struct idx *x)
{
	size_t i = 0;

	while (i < x->n && !alive(d, seg, &x->rec[i]))
		i++;
	return i < x->n;
}

int dir_dead(struct store *s, uint64_t *bytes, struct ds_err *err)
{
	struct dir *d = (struct dir *)s;
	uint32_t now = (uint32_t)(time_wall_ns() / 1000000000), slots;
	uint64_t *used = NULL;
	struct held h;
	int rc = hold_all(d, true, &h, err);

	*bytes = 0;
	if (rc)
		return rc;
	pthread_rwlock_rdlock(&d->lock);
	slots = d->segs;
	used = mem_calloc(slots + 1, sizeof *used);
	for (uint32_t i = 0; used && i < index_top(d->index); i++) {
		const struct index_entry *e = index_at(d->index, i);

		if (e->segment < slots && (!e->expires || e->expires > now + 1))
			used[e->segment] += ((uint64_t)e->front + index_data(e)) * INDEX_UNIT;
	}
	pthread_rwlock_unlock(&d->lock);
	for (size_t i = 0; used && i < h.n; i++)
		*bytes += unused(d, h.seg[i], used[h.seg[i]->slot]);
	if (!used)
		rc = err_nomem(err, slots * sizeof *used, "segments");
	free(used);
	release_all(d, &h);
	return rc;
}

/* ---- gc ---- */

struct gc {
	struct dir *d;
	void (*tell)(void *ctx, const char *line);
	void *ctx;
	struct dir_report *r;
};

static __attribute__((format(printf, 3, 4))) void tell(const struct gc *g, const struct segment *seg,
	const char *fmt, ...)
{
	char line[700];
	va_list ap;
	size_t n = (size_t)snprintf(line, sizeof line, "%s: ", seg->name);

	va_start(ap, fmt);
	vsnprintf(line + n, sizeof line - n, fmt, ap);
	va_end(ap);
	if (g->tell)
		g->tell(g->ctx, line);
}

/* First those with nothing that is alive, which make room for what the others' items are moved to. */
enum gc_pass { GC_EMPTY, GC_MOVE };

/* An item that is not what was put, or cannot be read. */
static void tell_bad(const struct gc *g, const struct segment *seg, const struct idx_record *r,
	const struct ds_err *why)
{
	char hex[STORE_KEY_HEX];

	store_key_hex(&r->key, hex);
	tell(g, seg, "byte %" PRIu64 ": item %s %s: %s", (uint64_t)r->offset * INDEX_UNIT, hex,
		why->code == DS_DATA ? "is damaged, and dropped" : "stays where it is", why->text);
	g->r->bad_items++;
}

/* Moves what is alive; DS_NOINPUT: something cannot be read, and the segment stays. */
static int gc_move(const struct gc *g, struct segment *seg, const struct idx *x, struct ds_err *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < x->n; i++) {
		if (!alive(g->d, seg, &x->rec[i]))
			continue;
		rc = segment_move(g->d, seg, &x->rec[i], &(struct move){ seg->id.main, true, 0 }, err);
		if (rc == DS_DATA || rc == DS_NOINPUT)
			tell_bad(g, seg, &x->rec[i], err);
		if (rc == DS_DATA)
			rc = 0; /* it goes with its segment */
	}
	return rc;
}

static int gc_segment(const struct gc *g, struct segment *seg, enum gc_pass pass, bool merge, struct ds_err *err)
{
	struct dir *d = g->d;
	struct idx x = { 0 };
	uint64_t dead;
	bool gone;
	int rc = 0, unsettled;

	pthread_rwlock_rdlock(&d->lock);
	gone = seg->gone;
	pthread_rwlock_unlock(&d->lock);
	if (gone || orphans_undecided_in(d, seg) || !segment_take(d, seg))
		return 0; /* or others need it */
	if (segment_records(d, seg, &x, err)) {
		if (pass == GC_MOVE)
			tell(g, seg, "it stays as it is: %s", err->text);
		goto out;
	}
	dead = dead_bytes(d, seg, &x);
	if ((!dead && !merge) || (pass == GC_EMPTY && any_alive(d, seg, &x)))
		goto out;
	rc = gc_move(g, seg, &x, err);
	unsettled = dir_settle(d, rc ? &(struct ds_err){ 0 } : err);
	rc = rc ? rc : unsettled;
	if (!rc) {
		g->r->dead_bytes += dead;
		segment_remove(d, seg);
	} else if (!unsettled) { /* what was moved is deleted there: else it would be back after a restart */
		segment_enter(d, seg, x.rec, x.n, &(struct ds_err){ 0 });
	}
out:
	segment_unlock(d, seg);
	idx_free(&x);
	return rc == DS_NOINPUT ? 0 : rc;
}

/* One segment at a time: others are not to wait long for the directory. */
static int gc_next(const struct gc *g, struct held *h, size_t i, enum gc_pass pass, size_t *full, struct ds_err *err)
{
	struct dir *d = g->d;
	int rc = dir_write_lock(d, time_mono_ns() + DIR_OPEN_WAIT_S * (int64_t)1000000000, err);

	if (rc)
		return rc;
	rc = dir_lock(d, err);
	if (!rc) {
		rc = dir_look(d, true, err);
		if (!rc)
			rc = gc_segment(g, h->seg[i], pass, has_fellows(d, h->seg[i], h), err);
		if (rc == DS_TEMP) { /* others may go */
			++*full;
			rc = 0;
		}
		dir_unlock(d);
	}
	dir_write_unlock(d);
	return rc;
}

/* Segments that cannot go for lack of room stay; DS_TEMP if that is so of all. */
static int gc_all(const struct gc *g, struct held *h, struct ds_err *err)
{
	struct dir *d = g->d;
	size_t full = 0, went = 0;
	int rc = 0;

	for (int pass = GC_EMPTY; !rc && pass <= GC_MOVE; pass++)
		for (size_t i = 0; !rc && i < h->n; i++)
			rc = gc_next(g, h, i, (enum gc_pass)pass, &full, err);
	pthread_rwlock_rdlock(&d->lock);
	for (size_t i = 0; i < h->n; i++)
		went += h->seg[i]->gone;
	pthread_rwlock_unlock(&d->lock);
	return !rc && full && !went ? err_set(err, DS_TEMP, "'%s': no room to write anew what is alive", d->path) : rc;
}

int dir_gc(const char *path, const struct store_options *o, void (*say)(void *ctx, const char *line), void *ctx,
	struct dir_report *r, struct ds_err *err)
{
	struct gc g = { .tell = say, .ctx = ctx, .r = r };
	struct dir_session *ss = NULL;
	struct held h = { NULL, 0 };
	struct store *s = NULL;
	struct store_stat st;
	int rc = dir_there(path, err);

	*r = (struct dir_report){ 0 };
	if (!rc)
		rc = open_dir(path, o, &s, &ss, err); /* makes lost files beside segments, too */
	if (rc)
		goto out;
	g.d = ss->d;
	rc = hold_all(g.d, true, &h, err);
	if (!rc)
		rc = gc_all(&g, &h, err);
	release_all(g.d, &h);
	if (!dir_stat_now(g.d, &st)) {
		r->segments = st.segments;
		r->items = st.items;
		r->bytes = st.bytes;
		r->evicted = st.evicted;
		r->evicted_bytes = st.evicted_bytes;
	}
out:
	close_dir(s, ss);
	return rc;
}

/* ---- export ---- */

static int export_item(struct dir_session *ss, struct segment *seg, const struct idx_record *r, struct frame_writer *w,
	struct dir_copied *c, struct ds_err *err)
{
	size_t n = ((size_t)r->front + r->data) * INDEX_UNIT;
	int fd = segment_fd(ss->d, seg);
	struct store_item item;
	struct frame f;
	uint8_t *plain, *p = mem_aligned(n);
	int rc = 0;

	if (!p)
		return err_nomem(err, n, "an item");
	if (fd < 0 || !dir_read(fd, p, n, (uint64_t)r->offset * INDEX_UNIT) ||
		frame_parse(ss->t.parser, p, n, &f, err)) {
		c->left_out += fd >= 0 || errno != ENOENT;
		goto out;
	}
	if (store_item_get(&f, &item, err) || !store_key_equal(&item.key, &r->key)) {
		c->left_out += f.type != FRAME_DROPPED; /* meanwhile */
		goto out;
	}
	plain = mem_array((size_t)item.size, 1);
	if (!plain) {
		rc = err_nomem(err, (size_t)item.size, "an item");
	} else if (!item_read(&ss->t, fd, ((uint64_t)r->offset + r->front) * INDEX_UNIT, &item, plain, err)) {
		f.stream = 0;
		rc = frame_forward(w, &f, err);
		c->items += !rc;
	} else {
		c->left_out++;
	}
	free(plain);
out:
	free(p);
	return rc;
}

int dir_export(const char *path, struct frame_writer *w, struct dir_copied *c, struct ds_err *err)
{
	const struct store_options o = { .read_only = true };
	struct dir_session *ss = NULL;
	struct held h = { NULL, 0 };
	struct store *s = NULL;
	int rc = open_dir(path, &o, &s, &ss, err);

	*c = (struct dir_copied){ 0 };
	if (!rc)
		rc = hold_all(ss->d, false, &h, err);
	for (size_t i = 0; !rc && i < h.n; i++) {
		struct idx x = { 0 };

		if (segment_records(ss->d, h.seg[i], &x, err))
			c->left_out++;
		for (size_t k = 0; !rc && k < x.n; k++)
			if (alive(ss->d, h.seg[i], &x.rec[k]))
				rc = export_item(ss, h.seg[i], &x.rec[k], w, c, err);
		idx_free(&x);
	}
	if (ss)
		release_all(ss->d, &h);
	close_dir(s, ss);
	return rc;
}

/* ---- import ---- */

/* A value of that name is there, and was put earlier: the later one counts.  Blocks of one key are all the same. */
static bool is_later(struct dir *d, const struct frame *f, const struct store_item *item)
{
	struct found old;
	const uint8_t *name;
	uint64_t at;
	size_t n;
	bool is;

	if (meta_bin(f->meta, "name", &name, &n) != META_OK || !dir_find(d, &item->key, false, &old))
		return false;
	is = !entry_put_at(d, old.seg, &old.e, &at, &(struct ds_err){ 0 }) && at < item->at_ns;
	segment_release(d, old.seg);
	return is;
}

static int import_item(struct dir_session *ss, const struct frame *f, struct dir_copied *c, struct ds_err *err)
{
	enum store_put_result how;
	struct store_item item;
	struct meta_builder *b;
	struct store_put p;
	struct iovec iov;
	uint8_t *plain;
	int rc = store_item_get(f, &item, err);

	if (!rc)
		rc = frame_check_payload(f, err);
	if (rc || store_item_expired(&item, (uint64_t)time_wall_ns()))
		return rc;
	b = meta_new();
	plain = mem_array((size_t)item.size, 1);
	if (!b || !plain) {
		rc = err_nomem(err, (size_t)item.size, "an item");
		goto out;
	}
	store_item_plain(&item, f->data, plain);
	meta_put_rest(b, f->meta, store_item_keys);
	iov = (struct iovec){ plain, (size_t)item.size };
	p = (struct store_put){ .key = item.key, .meta = b, .iov = &iov, .iovs = item.size != 0,
		.element = item.planes };
	rc = dir_put_item(ss, &p, &item, &how, err);
	p.replace = !rc && how == STORE_ALREADY && is_later(ss->d, f, &item);
	if (p.replace)
		rc = dir_put_item(ss, &p, &item, &how, err);
	c->items += !rc && how == STORE_STORED;
	c->already += !rc && how == STORE_ALREADY;
out:
	free(plain);
	meta_free(b);
	return rc;
}

/* Its first frame: a directory is made for what is exported from a store, not for something else. */
static int check_first(const struct frame *f, const char *name, struct ds_err *err)
{
	struct hello h;
	int rc;

	if (f->type == FRAME_STORE)
		return 0;
	if (f->type != FRAME_HELLO)
		return err_set(err, DS_DATA, "'%s' is no stream of a store: it begins with %s", name,
			frame_type_name(f->type));
	rc = hello_get(f, &h, err);
	if (rc)
		return err_prefix(err, "'%s'", name);
	return strcmp(h.role, "store") == 0 ? 0 : err_set(err, DS_DATA,
		"'%s' is no stream of a store, but of %s (role '%s')", name, h.program, h.role);
}

int dir_import(const char *path, const struct store_options *o, int fd, const char *name, struct dir_copied *c,
	struct ds_err *err)
{
	struct frame_reader *r = NULL;
	struct dir_session *ss = NULL;
	enum frame_event ev = FRAME_HEAD;
	struct store *s = NULL;
	struct frame *f;
	int rc = frame_reader_new(&r, fd, name, o->max_frame, err);

	*c = (struct dir_copied){ 0 };
	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, err);
		if (!rc && !s && ev == FRAME_BODY) {
			rc = check_first(f, name, err);
			if (!rc)
				rc = open_dir(path, o, &s, &ss, err);
		}
		if (rc || ev != FRAME_BODY || f->type == FRAME_HELLO || f->type == FRAME_END)
			continue;
		rc = import_item(ss, f, c, err);
		if (rc == DS_DATA)
			err_prefix(err, "'%s': byte %" PRIu64, name, f->offset);
	}
	frame_reader_free(r);
	close_dir(s, ss);
	return rc;
}
