-- A table whose row refuses those who are not the newest holder any more.
CREATE TABLE report (
    id    integer PRIMARY KEY,
    body  text NOT NULL,
    -- Tokens have a fixed width, so that their text compares as they do: byte by byte.
    token text COLLATE "C" NOT NULL
);
INSERT INTO report VALUES (1, '', '');

-- Equal is allowed, or a holder could write only once.
CREATE FUNCTION write_report(new_body text, new_token text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE seen text;
BEGIN
    UPDATE report SET body = new_body, token = new_token WHERE id = 1 AND token <= new_token;
    IF NOT FOUND THEN
        SELECT token INTO seen FROM report WHERE id = 1;
        RAISE EXCEPTION 'somebody newer was here, with token %', seen;
    END IF;
END $$;

-- A row is protected from the moment it has seen the newer token.
CREATE FUNCTION claim_report(new_token text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE was text;
BEGIN
    UPDATE report SET token = new_token WHERE id = 1 AND token <= new_token RETURNING body INTO was;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'somebody newer was here';
    END IF;
    RETURN was;
END $$;
