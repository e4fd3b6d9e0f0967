/*
 * A client that says anything to ds-kvstore's side of a unix socket: requests of every kind, which the input changes,
 * in pieces, with their checksums made right again or not; or the input as it is.  Whatever it is, the answers are a
 * whole stream from HELLO to END, and the items in it what was put.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "frame/hello.h"
#include "store/server.h"
#include "tests/fuzz/mini_store.h"
#include "tests/fuzz/repair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STREAM_MAX = 1 << 16, ANSWER_MAX = 1 << 22, EDIT = 4 };

static uint8_t sound[STREAM_MAX]; /* a client's stream */
static size_t sound_n;

/* ---- a client's stream ---- */

static void add_request(struct frame_writer *w, struct meta_builder *b, uint64_t stream, enum store_op op, size_t n,
	bool flag)
{
	struct store_request r = { .op = op, .n = n, .each = flag, .fds = flag };
	struct store_key keys[MINI_ITEMS + 1];
	const struct iovec iov = { keys, n * sizeof(*keys) };
	struct ds_err err;

	for (size_t i = 0; i < n; i++)
		keys[i] = mini_key(i);
	r.keys = keys[0].b;
	meta_reset(b);
	store_request_put(b, &r);
	must(frame_write(w, FRAME_STORE, 0, stream, b, &iov, n ? 1 : 0, false, &err) == 0);
}

static void add_put(struct frame_writer *w, struct meta_builder *b, uint64_t stream, size_t i, size_t size,
	unsigned flags)
{
	const struct store_item item = { .key = mini_key(i), .size = size, .at_ns = 1 };
	const struct store_put_request how = { .sync = true, .element = 2, .ttl_ns = 1000000000 };
	uint8_t bytes[1000] = { 1 };
	const struct iovec iov = { bytes, size };
	struct ds_err err;

	meta_reset(b);
	store_item_put(b, &item);
	store_put_request_put(b, &how);
	must(frame_write(w, FRAME_STORE, flags, stream, b, &iov, 1, true, &err) == 0);
}

static void make_sound(void)
{
	int fd = memfd_create("sound", MFD_CLOEXEC);
	struct hello h = { .minor = 1, .program = "fuzz", .version = "1", .role = "client" };
	struct meta_builder *b = meta_new();
	struct frame_writer *w;
	struct ds_err err;
	ssize_t n;

	must(fd >= 0 && b);
	must(frame_writer_new(&w, fd, "sound", &err) == 0);
	hello_put(b, &h);
	must(frame_write(w, FRAME_HELLO, 0, 0, b, NULL, 0, false, &err) == 0);
	add_request(w, b, 1, STORE_OP_HAS, MINI_ITEMS + 1, false);
	add_request(w, b, 2, STORE_OP_HAS, 3, true);
	add_request(w, b, 3, STORE_OP_GET, MINI_ITEMS, true);
	add_request(w, b, 4, STORE_OP_GET, 5, false);
	add_put(w, b, 5, MINI_ITEMS, 300, 0);
	add_put(w, b, 6, 1, 64, FRAME_ZSTD);
	add_request(w, b, 7, STORE_OP_PIN, 2, false);
	add_request(w, b, 8, STORE_OP_UNPIN, 2, false);
	add_request(w, b, 9, STORE_OP_STAT, 0, false);
	add_request(w, b, 10, STORE_OP_DOUBT, 1, false);
	add_request(w, b, 11, STORE_OP_DEL, 1, false);
	add_request(w, b, 12, STORE_OP_GET, 1, false);
	must(frame_write_end(w, &err) == 0);
	n = pread(fd, sound, sizeof(sound), 0);
	must(n > 0 && n < (ssize_t)sizeof(sound));
	sound_n = (size_t)n;
	frame_writer_free(w);
	meta_free(b);
	close(fd);
}

/* ---- the client ---- */

struct client {
	int fd;
	const uint8_t *p; /* [n] what it says */
	size_t n, piece;
	uint8_t *answer;  /* [ANSWER_MAX] */
	size_t got;
};

static void read_some(struct client *c)
{
	char control[CMSG_SPACE(sizeof(int) * 4)];
	struct iovec iov = { c->answer + c->got, ANSWER_MAX - c->got };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);

	for (struct cmsghdr *h = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL; h; h = CMSG_NXTHDR(&m, h)) {
		int fd;

		must(h->cmsg_type == SCM_RIGHTS);
		memcpy(&fd, CMSG_DATA(h), sizeof(fd));
		must((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY); /* nothing can be written by it */
		close(fd);
	}
	c->got += n > 0 ? (size_t)n : 0;
	if (n <= 0) {
		shutdown(c->fd, SHUT_RDWR); /* the server waits for that */
		c->fd = -1;
	}
	must(c->got < ANSWER_MAX);
}

static void *talk(void *arg)
{
	struct client *c = arg;
	size_t sent = 0;
	int fd = c->fd;

	if (!c->n)
		shutdown(fd, SHUT_WR);
	while (c->fd >= 0) {
		struct pollfd p = { .fd = fd, .events = (short)(POLLIN | (sent < c->n ? POLLOUT : 0)) };

		must(poll(&p, 1, 10000) > 0);
		if (p.revents & POLLOUT) {
			size_t n = c->piece && c->piece < c->n - sent ? c->piece : c->n - sent;
			ssize_t k = send(fd, c->p + sent, n, MSG_DONTWAIT | MSG_NOSIGNAL);

			sent = k > 0 ? sent + (size_t)k : k < 0 && (p.revents & (POLLHUP | POLLERR)) ? c->n : sent;
			if (sent == c->n)
				shutdown(fd, SHUT_WR);
		}
		if (p.revents & (POLLIN | POLLHUP | POLLERR))
			read_some(c);
	}
	return NULL;
}

/* ---- what it is told ---- */

static void check_item(const struct frame *f, bool changed)
{
	struct store_item item;
	enum store_op op;
	struct ds_err err;

	must(store_op_get(f, &op, &err) == 0);
	if (op != STORE_OP_PUT)
		return;
	must(store_item_get(f, &item, &err) == 0 && frame_check_payload(f, &err) == 0 && item.size <= f->data_len);
	for (size_t i = 0; i < MINI_ITEMS && !changed; i++) {
		struct store_key k = mini_key(i);

		if (store_key_equal(&k, &item.key))
			must(mini_right(i, f->data, item.size));
	}
}

static void check_answer(const struct client *c, bool changed)
{
	int fd = memfd_create("answer", MFD_CLOEXEC);
	enum frame_event ev = FRAME_AGAIN;
	struct frame_reader *r;
	struct frame *f;
	struct ds_err err;
	struct hello h;

	must(fd >= 0 && write(fd, c->answer, c->got) == (ssize_t)c->got && lseek(fd, 0, SEEK_SET) == 0);
	must(frame_reader_new(&r, fd, "answer", 0, &err) == 0);
	while (ev != FRAME_EOF) {
		must(frame_reader_next(r, &ev, &f, &err) == 0);
		if (ev != FRAME_BODY)
			continue;
		if (f->number == 0)
			must(f->type == FRAME_HELLO && hello_get(f, &h, &err) == 0);
		if (f->type == FRAME_STORE)
			check_item(f, changed);
	}
	frame_reader_free(r);
	close(fd);
}

static void converse(const uint8_t *p, size_t n, size_t piece, bool file)
{
	const struct store_server_options o = { .program = "fuzz", .max_frame = 1 << 20, .memory = 1 << 22,
		.peer_ns = (int64_t)5000000000 };
	static uint8_t answer[ANSWER_MAX];
	struct client c = { .p = p, .n = n, .piece = piece, .answer = answer };
	struct store *s = mini_open(file);
	struct ds_err err, refused = { 0 };
	struct store_server *sv;
	pthread_t t;
	int fd[2], rc;

	must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd));
	must(store_server_new(&sv, s, &o, &err) == 0);
	c.fd = fd[0];
	must(!pthread_create(&t, NULL, talk, &c));
	rc = store_serve(sv, fd[1], fd[1], "fuzz", &refused, &err);
	must(rc == 0 || (rc == err.code && err.text[0]));
	close(fd[1]);
	pthread_join(t, NULL);
	close(fd[0]);
	must(store_server_memory(sv) == 0 && store_server_counts(sv)->clients == 0);
	check_answer(&c, ((struct mini *)s)->changed);
	store_server_free(sv);
	mini_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t bytes[STREAM_MAX];
	uint8_t how = size ? data[0] : 0;
	size_t piece = how / 16 * (size_t)37, n = sound_n;

	if (!sound_n) {
		make_sound();
		n = sound_n;
	}
	if (how % 4 == 3) {
		converse(data + 1, size - 1, piece, how & 8);
		return 0;
	}
	memcpy(bytes, sound, n);
	for (size_t i = 1; i + EDIT <= size; i += EDIT) {
		size_t at = ((size_t)data[i] << 8 | data[i + 1]) % n;

		if (data[i + 2] % 4 == 0)
			bytes[at] ^= data[i + 3];
		else if (data[i + 2] % 4 == 1)
			bytes[at] = data[i + 3];
		else if (data[i + 2] % 16 == 2)
			n = at + 1;
		else if (data[i + 2] % 16 == 3)
			memmove(bytes + at, bytes + at / 2, (n - at) / 2);
	}
	if (how % 4 != 2)
		repair(bytes, n);
	converse(bytes, n, piece, how & 8);
	return 0;
}
