#include "ep/meet.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/addr.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "what is sent is as it lies in memory, little-endian");

/* Four bytes and the version of what follows: another major version is another magic. */
struct head { char magic[4]; uint32_t type, bytes, unused; };
static const char magic[4] = { 'D', 'S', 'U', '1' };

size_t meet_table_bytes(size_t count)
{
	return sizeof(struct meet_table) + count * sizeof(struct meet_entry);
}

static bool ends(const char *s, size_t cap)
{
	return memchr(s, 0, cap) != NULL;
}

static bool entry_ok(const struct meet_entry *e, size_t world)
{
	return e->rank < world && ends(e->addr, sizeof(e->addr));
}

bool meet_table_ok(const void *p, size_t n, size_t world)
{
	const struct meet_table *t = p;

	if (n < sizeof(*t) || t->world != world || t->count > world || n != meet_table_bytes(t->count) ||
		t->holder > world || t->count == 0)
		return false;
	for (size_t i = 0; i < t->count; i++)
		if (!entry_ok(&t->entry[i], world) || (i && t->entry[i].rank <= t->entry[i - 1].rank))
			return false;
	return true;
}

bool meet_hello_ok(const void *p, size_t n, const struct meet_table **table)
{
	const struct meet_hello *h = p;

	*table = NULL;
	if (n < sizeof(*h) || h->world == 0 || h->world > EP_MAX_WORLD || h->terms > MEET_TERMS ||
		!entry_ok(&h->self, h->world))
		return false;
	for (size_t i = 0; i < h->terms; i++)
		if (!ends(h->term[i].name, sizeof(h->term[i].name)) ||
			!ends(h->term[i].value, sizeof(h->term[i].value)))
			return false;
	if (n == sizeof(*h))
		return true;
	*table = (const struct meet_table *)(h + 1);
	return meet_table_ok(*table, n - sizeof(*h), h->world);
}

bool meet_refusal_ok(const void *p, size_t n)
{
	const struct meet_refusal *r = p;

	return n == sizeof(*r) && ends(r->text, sizeof(r->text)) && r->code > 0 && r->code < 128;
}

bool meet_intro_ok(const struct meet_intro *i, size_t world)
{
	return i->magic == MEET_INTRO_MAGIC && entry_ok(&i->from, world);
}

/* ---- agreement ---- */

static const struct unit_term *find_term(const struct meet_hello *h, const char *name)
{
	for (size_t i = 0; i < h->terms; i++)
		if (!strcmp(h->term[i].name, name))
			return &h->term[i];
	return NULL;
}

static int differ(const char *addr, const struct meet_hello *a, const struct meet_hello *b, const char *name,
	struct ds_err *err)
{
	const struct unit_term *ta = find_term(a, name), *tb = find_term(b, name);

	return err_set(err, DS_PROTO, "unit '%s': ranks differ in %s: rank %u has '%s', rank %u has '%s'", addr, name,
		a->self.rank, ta ? ta->value : "(none)", b->self.rank, tb ? tb->value : "(none)");
}

int meet_agree(const char *addr, const struct meet_hello *own, const struct meet_hello *other, struct ds_err *err)
{
	const struct meet_hello *a = own->self.rank <= other->self.rank ? own : other, *b = a == own ? other : own;

	if (a->world != b->world)
		return err_set(err, DS_CONFIG, "unit '%s': rank %u was started for %u rank%s, rank %u for %u", addr,
			a->self.rank, a->world, plural(a->world), b->self.rank, b->world);
	for (size_t i = 0; i < a->terms; i++) {
		const struct unit_term *t = find_term(b, a->term[i].name);

		if (!t || strcmp(t->value, a->term[i].value))
			return differ(addr, a, b, a->term[i].name, err);
	}
	for (size_t i = 0; i < b->terms; i++)
		if (!find_term(a, b->term[i].name))
			return differ(addr, a, b, b->term[i].name, err);
	return 0;
}

void meet_names(const struct ranks *who, char *text, size_t cap)
{
	size_t n = ranks_count(who), at = 0, i = 0;

	at += (size_t)snprintf(text, cap, "rank%s", plural(n));
	for (size_t r = ranks_next(who, 0); r < EP_MAX_WORLD && at < cap; r = ranks_next(who, r + 1), i++)
		at += (size_t)snprintf(text + at, cap - at, "%s %zu", !i ? "" : i + 1 == n ? " and" : ",", r);
}

/* ---- messages ---- */

void meet_io_free(struct meet_io *io)
{
	if (io->fd >= 0)
		close(io->fd);
	io->fd = -1;
	buf_free(&io->in);
	buf_free(&io->out);
}

static size_t most_bytes(uint32_t type)
{
	size_t table = meet_table_bytes(EP_MAX_WORLD);

	switch (type) {
	case MEET_HELLO: return sizeof(struct meet_hello) + table;
	case MEET_TABLE: return table;
	case MEET_REFUSAL: return sizeof(struct meet_refusal);
	default: return 0;
	}
}

/* Reads up to `want` bytes in all: 1, 0, -1 as meet_read. */
static int read_up_to(struct meet_io *io, size_t want)
{
	char piece[16384];

	while (io->in.len < want) {
		size_t left = want - io->in.len;
		ssize_t n = recv(io->fd, piece, left < sizeof(piece) ? left : sizeof(piece), MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0)
			return -1;
		buf_add(&io->in, piece, (size_t)n);
		if (io->in.nomem)
			return -1;
	}
	return 1;
}

int meet_read(struct meet_io *io, enum meet_type *type, const void **data, size_t *n)
{
	struct head h;
	int rc;

	if (io->seen)
		io->in.len = 0;
	io->seen = false;
	rc = read_up_to(io, sizeof(h));
	if (rc != 1)
		return rc;
	memcpy(&h, io->in.p, sizeof(h));
	if (memcmp(h.magic, magic, sizeof(magic)) || h.type < MEET_HELLO || h.type > MEET_QUIT ||
		h.bytes > most_bytes(h.type))
		return -1;
	rc = read_up_to(io, sizeof(h) + h.bytes);
	if (rc != 1)
		return rc;
	io->seen = true;
	*type = (enum meet_type)h.type;
	*data = io->in.p + sizeof(h);
	*n = h.bytes;
	return 1;
}

bool meet_flush(struct meet_io *io)
{
	while (io->out.len) {
		ssize_t n = send(io->fd, io->out.p, io->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		io->out.len -= (size_t)n;
		memmove(io->out.p, io->out.p + n, io->out.len);
	}
	return true;
}

bool meet_write(struct meet_io *io, enum meet_type type, const void *a, size_t na, const void *b, size_t nb)
{
	struct head h = { .type = type, .bytes = (uint32_t)(na + (b ? nb : 0)) };

	memcpy(h.magic, magic, sizeof(magic));
	buf_add(&io->out, &h, sizeof(h));
	if (na)
		buf_add(&io->out, a, na);
	if (b && nb)
		buf_add(&io->out, b, nb);
	return !io->out.nomem && meet_flush(io);
}

/* ---- sockets ---- */

static socklen_t abstract(struct sockaddr_un *u, const char *name)
{
	size_t n = strlen(name);

	*u = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (n > sizeof(u->sun_path) - 1)
		n = sizeof(u->sun_path) - 1;
	memcpy(u->sun_path + 1, name, n);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static int unix_socket(int *fd, struct ds_err *err)
{
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return *fd < 0 ? err_errno(err, DS_OS, "cannot make a socket") : 0;
}

int meet_listen(const char *host, bool anywhere, uint64_t incarnation, int *fd, char addr[MEET_ADDR],
	struct ds_err *err)
{
	struct sockaddr_un u;
	struct addr a;
	char text[300];
	socklen_t n;

	*fd = -1;
	if (host) {
		snprintf(text, sizeof(text), "tcp:%.250s:0", host);
		if (addr_parse(text, &a, err) || addr_bind(&a, anywhere, false, 0, fd, err))
			return err->code;
		addr_local(*fd, addr, MEET_ADDR);
		return 0;
	}
	if (unix_socket(fd, err))
		return err->code;
	snprintf(addr, MEET_ADDR, "@dsutils-unit-%016" PRIx64, incarnation);
	n = abstract(&u, addr + 1);
	if (!bind(*fd, (struct sockaddr *)&u, n) && !listen(*fd, EP_MAX_WORLD))
		return 0;
	err_errno(err, DS_OS, "cannot listen for the other ranks");
	close(*fd);
	*fd = -1;
	return err->code;
}

/* What a rank says of itself is; a name might take long to resolve. */
static bool numeric(const char *host)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST };
	struct addrinfo *list;

	if (getaddrinfo(host, NULL, &hints, &list))
		return false;
	freeaddrinfo(list);
	return true;
}

int meet_connect(const char *addr, int *fd, struct ds_err *err)
{
	struct sockaddr_un u;
	struct addr a;
	socklen_t n;

	*fd = -1;
	if (addr[0] != '@') {
		if (addr_parse(addr, &a, err))
			return err->code;
		if (!numeric(a.host))
			return err_set(err, DS_PROTO, "'%s' is not where a rank listens", addr);
		return addr_start(&a, fd, err);
	}
	if (unix_socket(fd, err))
		return err->code;
	n = abstract(&u, addr + 1);
	if (!connect(*fd, (struct sockaddr *)&u, n))
		return 0;
	err_errno(err, DS_UNAVAILABLE, "cannot connect to '%s'", addr);
	close(*fd);
	*fd = -1;
	return err->code;
}

void meet_host(int fd, char *host, size_t cap)
{
	char text[MEET_ADDR];
	char *colon;

	addr_local(fd, text, sizeof(text));
	colon = strrchr(text, ':');
	*host = 0;
	if (strncmp(text, "tcp:", 4) || !colon)
		return;
	*colon = 0;
	snprintf(host, cap, "%s", text + 4);
}
