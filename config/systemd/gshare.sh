# Tells people at a terminal how this machine's GPUs are used. Installed by gshare; remove it freely.
case $- in
*i*)
    if [ -t 2 ] && [ -z "${GSHARE_CLAIM_ID-}" ] && [ -S /run/gshare/gshared.sock ]; then
        echo "GPUs here are shared: gshare shell" >&2
    fi
    ;;
esac
