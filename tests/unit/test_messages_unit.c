/* Load and plan frames: what is written comes back; what is wrong is refused by its key, place and value. */
#include <math.h>

#include "base/mem.h"
#include "frame/messages_unit.h"
#include "tests/unit/frames.h"

static struct ds_err why;
static int rc;

/* ---- plan ---- */

enum { LAYERS = 2, RANKS = 3, SLOTS = 2, EXPERTS = 4, CELLS = LAYERS * RANKS * SLOTS };

static const int32_t good_ids[CELLS] = { 3, 0, 1, -1, 2, 0,  -1, -1, 0, 1, 3, 2 };
static const float good_weights[CELLS] = { 5, 3, 1, NAN, 1, 1,  -1, 0, 1, 1, 1, 1 };
static int32_t ids[CELLS];
static float weights[CELLS];

static struct plan_message good_plan(void)
{
	memcpy(ids, good_ids, sizeof(ids));
	memcpy(weights, good_weights, sizeof(weights));
	return (struct plan_message){ 7, LAYERS, EXPERTS, RANKS, SLOTS, ids, weights };
}

static void same_plan(const struct frame *f, void *ctx)
{
	const struct plan_message *want = ctx;
	struct plan_message p;

	rc = plan_get(f, &p, &why);
	if (rc)
		return;
	if (p.epoch != want->epoch || p.layers != LAYERS || p.experts != EXPERTS || p.ranks != RANKS ||
	    p.slots != SLOTS || memcmp(p.placement, want->placement, sizeof(ids)) ||
	    !p.weights != !want->weights || (p.weights && memcmp(p.weights, want->weights, sizeof(weights))))
		rc = -1;
}

static void write_plan(const struct plan_message *p)
{
	struct meta_builder *b = meta_new();
	int fd;
	struct frame_writer *w = frames_begin(&fd);

	if (plan_write(w, b, p, &why))
		tap_bail("%s", why.text);
	frames_look(w, fd, FRAME_PLAN, same_plan, (void *)(uintptr_t)p);
	meta_free(b);
}

static void refused(const char *what, const char *a, const char *b)
{
	tap_ok(rc == DS_DATA && strstr(why.text, a) && strstr(why.text, b), "%s is refused: %s", what,
		rc == DS_DATA ? why.text : "it is not");
}

static void bad_plan(const struct plan_message *p, const char *what, const char *a, const char *b)
{
	write_plan(p);
	refused(what, a, b);
}

static void test_plan(void)
{
	struct plan_message p = good_plan();

	write_plan(&p);
	tap_ok(!rc, "a plan comes back, whatever the weights of empty slots are");
	p.weights = NULL;
	write_plan(&p);
	tap_ok(!rc, "a plan without weights, too");

	p = good_plan();
	ids[11] = 4;
	bad_plan(&p, "an expert that is not there", "'placement' of layer 1, rank 2, slot 1 is expert 4", "-1 to 3");
	ids[11] = -2;
	bad_plan(&p, "an expert below 0", "layer 1, rank 2, slot 1", "-2");
	ids[11] = 3;
	bad_plan(&p, "an expert without a slot", "layer 1", "expert 2");
	p = good_plan();
	weights[1] = NAN;
	bad_plan(&p, "a weight that is none", "'weights' of layer 0, rank 0, slot 1", "nan");
	weights[1] = INFINITY;
	bad_plan(&p, "an infinite weight", "slot 1", "inf");
	weights[1] = 0;
	bad_plan(&p, "a weight of 0", "slot 1", "above 0");
	p = good_plan();
	p.epoch = 0;
	bad_plan(&p, "a plan without a number", "'epoch'", "0");
}

/* Meta and tensor rows as they come, over a payload of `bytes` zeroes. */
struct raw {
	uint64_t layers, experts, ranks, slots;
	enum dtype type;
	const char *dims;
	uint64_t shape[3];
	size_t ndim;
};

static void write_raw(const struct raw *r, const char *tensor)
{
	static const char zero[4096];
	struct iovec iov = { (void *)(uintptr_t)zero, sizeof(zero) };
	struct plan_message any = good_plan();
	struct meta_builder *b = meta_new();
	int fd;
	struct frame_writer *w = frames_begin(&fd);

	meta_put_uint(b, "epoch", 1);
	meta_put_uint(b, "layers", r->layers);
	meta_put_uint(b, "experts", r->experts);
	meta_put_uint(b, "ranks", r->ranks);
	meta_put_uint(b, "slots", r->slots);
	meta_put_tensor(b, tensor, r->type, r->dims, r->shape, r->ndim, 0, NULL);
	if (frame_write(w, FRAME_PLAN, 0, 0, b, &iov, 1, false, &why))
		tap_bail("%s", why.text);
	frames_look(w, fd, FRAME_PLAN, same_plan, &any);
	meta_free(b);
}

static void bad_raw(const struct raw *r, const char *tensor, const char *what, const char *a, const char *b)
{
	write_raw(r, tensor);
	refused(what, a, b);
}

static void test_plan_shapes(void)
{
	const struct raw good = { 1, 1, 2, 2, DT_I32, "layer,rank,slot", { 1, 2, 2 }, 3 };
	struct raw r = good;

	write_raw(&r, "placement");
	tap_ok(rc == -1, "a plan of one expert is read");
	bad_raw(&r, "place", "no tensor of that name", "'placement'", "missing");
	r.type = DT_U32;
	bad_raw(&r, "placement", "another type", "'placement'", "I32 [layer 1, rank 2, slot 2]");
	r = good;
	r.dims = "rank,layer,slot";
	bad_raw(&r, "placement", "other axes", "'placement'", "layer 1");
	r = good;
	r.shape[1] = 3;
	bad_raw(&r, "placement", "another shape than in meta", "'placement'", "rank 2");
	r.ndim = 2;
	r.dims = "layer,rank";
	bad_raw(&r, "placement", "fewer axes", "'placement'", "slot 2");
	r = good;
	r.layers = r.shape[0] = UINT32_MAX;
	bad_raw(&r, "placement", "more layers than bytes", "placement", "beyond the payload");
	r = good;
	r.experts = UNIT_MESSAGE_EXPERTS + 1;
	bad_raw(&r, "placement", "too many experts", "'experts'", "65537");
	r = good;
	r.ranks = UINT64_MAX;
	bad_raw(&r, "placement", "too many ranks", "'ranks'", "16384");
	r = good;
	r.slots = 0;
	bad_raw(&r, "placement", "no slots", "'slots'", "is 0");
}

static void test_too_large(void)
{
	struct plan_message p = good_plan();
	struct load_message m = { .layers = UINT64_MAX / 8, .experts = 2, .world = 0 };
	struct meta_builder *b = meta_new();
	int fd;
	struct frame_writer *w = frames_begin(&fd);

	p.layers = UINT64_MAX / 4;
	tap_ok(plan_write(w, b, &p, &why) == DS_BUG && load_write(w, b, &m, &why) == DS_BUG,
		"sizes that overflow are not written: %s", why.text);
	frame_writer_free(w);
	meta_free(b);
	close(fd);
}

/* ---- load ---- */

static struct load_peer peers[3] = { { 0, 0, 0 }, { 1, UINT64_MAX, 3 }, { 1u << 31, 5, (uint64_t)1 << 60 } };
static int64_t counts[8], received[8];

static struct load_message good_load(void)
{
	for (size_t i = 0; i < 8; i++) {
		counts[i] = (int64_t)i << 40;
		received[i] = 8 - (int64_t)i;
	}
	return (struct load_message){ 2, 3, 4, 5, 6, 7, 8, 9, 3, 2, 4, counts, received, peers };
}

struct wanted_load { struct load_message m; };

static void same_load(const struct frame *f, void *ctx)
{
	const struct load_message *want = &((const struct wanted_load *)ctx)->m;
	struct load_message m;

	rc = load_get(f, &m, &why);
	if (rc)
		return;
	if (memcmp(&m, want, offsetof(struct load_message, counts)) || memcmp(m.counts, counts, sizeof(counts)) ||
	    memcmp(m.received, received, sizeof(received)) || !(f->flags & FRAME_DROPPABLE))
		rc = -1;
	for (size_t i = 0; i < 3; i++) {
		struct load_peer p = load_peer_at(f, i);

		if (memcmp(&p, &peers[i], sizeof(p)))
			rc = -1;
	}
}

static void write_load(const struct load_message *m)
{
	struct wanted_load want = { *m };
	struct meta_builder *b = meta_new();
	int fd;
	struct frame_writer *w = frames_begin(&fd);

	if (load_write(w, b, m, &why))
		tap_bail("%s", why.text);
	frames_look(w, fd, FRAME_LOAD, same_load, &want);
	meta_free(b);
}

static void bad_load(const struct load_message *m, const char *what, const char *a, const char *b)
{
	write_load(m);
	refused(what, a, b);
}

static void test_load(void)
{
	struct load_message m = good_load();

	write_load(&m);
	tap_ok(!rc, "a load comes back, is droppable");
	counts[5] = -1;
	bad_load(&m, "a count below 0", "'counts' of layer 4, expert 1", "-1");
	m = good_load();
	received[7] = INT64_MIN;
	bad_load(&m, "rows below 0", "'received' of layer 4, expert 3", "below 0");
	m = good_load();
	m.rank = 3;
	bad_load(&m, "a rank beyond the world", "'rank' is 3", "0 to 2");
	m = good_load();
	m.world = 0;
	bad_load(&m, "a world of none", "'world'", "is 0");
}

/* A load whose arrays of peers are not what they should be. */
static void write_peers(size_t n, bool negative)
{
	struct load_message m = good_load();
	struct wanted_load want = { m };
	struct meta_builder *b = meta_new();
	int fd;
	struct frame_writer *w = frames_begin(&fd);
	static const char *const keys[] = { "epoch", "plan", "t_ns", "interval_ns", "steps", "rows", "layer" };

	meta_put_uint(b, "world", 3);
	meta_put_uint(b, "rank", 0);
	meta_put_uint(b, "layers", 1);
	meta_put_uint(b, "experts", 1);
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		meta_put_uint(b, keys[i], 1);
	meta_put_array(b, "sent_bytes");
	for (size_t i = 0; i < n; i++)
		meta_put_real(b, NULL, negative && i == 1 ? -1.5 : 1.0);
	meta_put_end(b);
	if (frame_write(w, FRAME_LOAD, 0, 0, b, NULL, 0, false, &why))
		tap_bail("%s", why.text);
	frames_look(w, fd, FRAME_LOAD, same_load, &want);
	meta_free(b);
}

static void test_peers(void)
{
	write_peers(2, false);
	refused("fewer peers than the world has", "'sent_bytes' has 2 entries", "world of 3");
	write_peers(4, false);
	refused("more peers than the world has", "'sent_bytes' has 4 entries", "3");
	write_peers(3, true);
	refused("a peer's figure that is no whole number", "'sent_bytes'", "whole number");
	write_peers(20000, false);
	refused("no end of peers", "'sent_bytes'", "20000");
}

/* One of each, for other implementations to read. */
static int write_sample(const char *path)
{
	struct plan_message p = good_plan();
	struct load_message m = good_load();
	struct meta_builder *b = meta_new();
	int fd, rc_write;
	struct frame_writer *w = frames_begin(&fd);
	uint8_t *bytes;
	size_t n;
	FILE *out = fopen(path, "w");

	if (!out || plan_write(w, b, &p, &why) || load_write(w, b, &m, &why) || frame_write_end(w, &why))
		return 1;
	bytes = bytes_of(fd, &n);
	rc_write = fwrite(bytes, 1, n, out) != n;
	free(bytes);
	frame_writer_free(w);
	meta_free(b);
	close(fd);
	return fclose(out) || rc_write;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--sample") == 0)
		return write_sample(argv[2]);
	test_plan();
	test_plan_shapes();
	test_too_large();
	test_load();
	test_peers();
	return tap_done();
}
